"""Model types that trainers and rollout engines can run, by `model_type` of a Hugging Face config.

Both run transformers' own forward pass with an attention function of ours. The tests compare the result with
transformers' for each type of the lists.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.models import Model

#: Types of the families in docs/support.md, which went through training, refits, export and vLLM.
FAMILY_TYPES = (
    "gemma2",
    "gemma3_text",
    "llama",
    "mistral",
    "mixtral",
    "olmo",
    "olmo2",
    "olmo3",
    "phi",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)
#: Types whose log-probabilities in the trainer and in the torch engine equal transformers'.
OTHER_TYPES = (
    "afmoe",
    "apertus",
    "arcee",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "flex_olmo",
    "gemma",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "jais2",
    "minimax_m2",
    "ministral",
    "ministral3",
    "olmoe",
    "opt",
    "persimmon",
    "phimoe",
    "qwen2_moe",
    "seed_oss",
    "starcoder2",
    "vaultgemma",
)
SUPPORTED_TYPES = tuple(sorted((*FAMILY_TYPES, *OTHER_TYPES)))
#: Mixtures of experts whose routers the torch engine records, and the torch backend replays and balances.
ROUTER_TYPES = ("flex_olmo", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")


def model_type_error(model_type: object) -> str | None:
    """Return the error of a model type; None: it is supported."""
    if model_type in SUPPORTED_TYPES:
        return None
    near = get_close_matches(str(model_type), SUPPORTED_TYPES, n=1, cutoff=0.75)
    guess = f"did you mean {near[0]}? " if near else ""
    begin = "is required" if model_type is None else "is not supported"
    return f"{begin}: {guess}supported are {', '.join(SUPPORTED_TYPES)}"


def architecture_problem(model: Model, path: DocumentPath) -> Iterator[tuple[DocumentPath, Any, str]]:
    """Yield (path, value, message) of the type of a model with random weights, unless it is supported.

    Args:
        path: Of the model in the document.
    """
    if model.config is not None:
        kind = model.config.architecture.get("model_type")
        message = model_type_error(kind)
        if message is not None:
            yield (*path, "config", "architecture", "model_type"), kind, message


def router_type_error(model_type: object) -> str | None:
    """Return the error of a field that needs known routers for a model type; None: they are known."""
    if model_type in ROUTER_TYPES:
        return None
    known = ", ".join(ROUTER_TYPES)
    return f"the policy is of type {model_type}; the routers of {known} alone are supported: remove it"


def has_weights(folder: Path) -> bool:
    """Return True for a folder with weights; one with a configuration alone can be planned, not run."""
    return any(any(folder.glob(f"*.{suffix}")) for suffix in ("safetensors", "bin"))


def folder_problem(folder: Path) -> str | None:
    """Return the error of the type that a folder's config.json states.

    None: the type is supported, or there is no config.json that can be read, which is another error.
    """
    config = read_folder_config(folder)
    if config is None:
        return None
    kind = config.get("model_type")
    message = model_type_error(kind)
    return None if message is None else f"config.json, model_type: {kind!r} {message}"


def folder_router_problem(folder: Path) -> str | None:
    """Return `router_type_error` of the model in a folder; None also as in `folder_problem`."""
    config = read_folder_config(folder)
    return None if config is None else router_type_error(config.get("model_type"))


def read_folder_config(folder: Path) -> Mapping[str, Any] | None:
    """Return the config.json of a model's folder; None if it cannot be read, which is another error."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, Mapping) else None
