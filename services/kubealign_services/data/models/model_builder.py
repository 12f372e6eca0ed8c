"""Construction of a model from a config: random weights drawn from the seed, and a tokenizer."""

import dataclasses
import difflib
from pathlib import Path
from typing import Any

import torch
import xxhash
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.tokenizers import min_vocabulary_size

_FROM_TOKENIZER = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
# Accepted besides the config's fields: older spellings of rope_parameters.
_LEGACY_ROPE_FIELDS = ("rope_theta", "rope_scaling")


def build_model(
    architecture: dict[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int, folder: Path, spec_path: str
) -> None:
    """Write a Hugging Face folder: safetensors in float32, config, tokenizer.

    The same seed gives the same weights.

    Args:
        spec_path: Path of `architecture` in the spec, for errors.

    Raises DataError for an unknown model_type, a field that its config does not have, inconsistent sizes,
    or a model that is not a causal language model.
    """
    config = build_config(architecture, tokenizer, spec_path)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:weights".encode()) >> 1)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise DataError(
            f"{spec_path}: no causal language model can be built from it: {_summarize_error(error)}"
        ) from error
    disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_config(
    architecture: dict[str, Any], tokenizer: PreTrainedTokenizerBase, spec_path: str
) -> PretrainedConfig:
    """Build the config, with the vocabulary size and the special token ids of the tokenizer.

    Raises DataError as `build_model`.
    """
    sizes = dict(architecture)
    model_type = sizes.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(model_type), list(CONFIG_MAPPING), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; llama, qwen2 and gpt2 are some"
        raise DataError(f"{spec_path}.model_type: {model_type!r} is no model type of transformers{hint}")
    _check_names(sizes, CONFIG_MAPPING[model_type], model_type, spec_path)
    try:
        return AutoConfig.for_model(
            model_type,
            **sizes,
            vocab_size=min_vocabulary_size(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    except Exception as error:
        raise DataError(
            f"{spec_path}: no {model_type} config can be built from it: {_summarize_error(error)}"
        ) from error


def _check_names(
    sizes: dict[str, Any], config: type[PretrainedConfig], model_type: str, spec_path: str
) -> None:
    fields = {field.name for field in dataclasses.fields(config)} | set(config.attribute_map)
    if "rope_parameters" in fields:
        fields |= set(_LEGACY_ROPE_FIELDS)
    for name in sizes:
        if name in _FROM_TOKENIZER:
            raise DataError(f"{spec_path}.{name}: it is taken from the tokenizer: remove it")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise DataError(f"{spec_path}.{name}: {model_type} configs have no such field{hint}")


def _summarize_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"
