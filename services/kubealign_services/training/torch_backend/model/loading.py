"""Loads models from Hugging Face folders and combines trunks with heads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
)

from kubealign.spec.sections.training import HeadInit
from kubealign_services.runtime.model_cache import local_copy
from kubealign_services.training.contract import Head
from kubealign_services.training.files.hf_heads import (
    check_model_folder,
    check_score_names,
    check_value_head,
    init_score_head,
    is_reward_model,
    merge_heads,
    not_a_language_model,
    not_a_reward_model,
    score_names,
)
from kubealign_services.training.torch_backend.model.cpu_linear import patch_cpu_linear
from kubealign_services.training.torch_backend.model.fused_layers import patch_fused_layers
from kubealign_services.training.torch_backend.model.packed_model import PackedModel
from kubealign_services.training.torch_backend.model.packing_selfcheck import can_share_prompts, check_packing
from kubealign_services.training.torch_backend.packing.packed_attention import (
    PACKED_ATTENTION,
    UnsupportedTrainingModel,
)

_LAYER_TYPES = {"full_attention", "sliding_attention"}


def load_model(
    folder: Path,
    head: Head,
    dtype: torch.dtype = torch.float32,
    head_init: HeadInit = HeadInit.ZERO,
    seed: int = 0,
    scores: Sequence[str] = (),
    attributes: Mapping[str, float] | None = None,
) -> PackedModel:
    """Load the model of a Hugging Face folder on the CPU, verified to compute the same packed as unpacked.

    LANGUAGE_MODEL needs a causal language model. VALUE and SCORE also take a reward model (a
    sequence-classification checkpoint). VALUE: the trunk, with a head of zeros or that of a reward
    model. SCORE: the reward model's own head, or on a language model a head drawn from seed with the
    config's `initializer_range`, in addition to the language-model head.

    Args:
        scores: Required names of the labels; empty to accept a reward model's labels, and for a new head of
            one score.
        attributes: Weight of each label in the value, of a reward model with several; see `merge_heads`.

    Raises:
        UnsupportedTrainingModel: The model cannot run packed.
        ValueError: The folder holds another kind of model.
    """
    check_model_folder(folder)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    _check_config(config)
    is_classifier = is_reward_model(config)
    if head is Head.LANGUAGE_MODEL or (head is Head.SCORE and not is_classifier):
        if is_classifier:
            raise not_a_language_model(folder, config)
        model = PackedModel(
            _load_pretrained(AutoModelForCausalLM, folder, dtype),
            head,
            _init_score(config, head, dtype, seed, max(1, len(scores))),
        )
    elif is_classifier and (head is Head.SCORE or head_init is HeadInit.REWARD_MODEL):
        if head is Head.VALUE:
            check_value_head(folder, config, attributes)
        else:
            check_score_names(folder, config, tuple(scores))
        model = _load_reward_model(folder, head, dtype)
        if head is Head.VALUE:
            _merge_scores(model, score_names(config), attributes)
    elif head_init is HeadInit.REWARD_MODEL:
        raise not_a_reward_model(folder, config)
    else:
        score = nn.Linear(config.get_text_config().hidden_size, 1, bias=False, dtype=dtype)
        nn.init.zeros_(score.weight)
        model = PackedModel(_load_pretrained(AutoModel, folder, dtype), head, score)
    model.eval()
    patch_cpu_linear(model)
    patch_fused_layers(model)
    check_packing(model)
    model.can_share_prompts = can_share_prompts(model)
    return model


def _check_config(config: Any) -> None:
    """Check the traits that neither the model's class nor a short trial would show."""
    text = config.get_text_config()
    unknown = set(getattr(text, "layer_types", None) or []) - _LAYER_TYPES
    if unknown:
        raise UnsupportedTrainingModel(
            f"model type {config.model_type} has layers of {sorted(unknown)}; "
            f"packed attention supports {sorted(_LAYER_TYPES)}"
        )
    if getattr(text, "is_encoder_decoder", False):
        raise UnsupportedTrainingModel(
            f"model type {config.model_type} has an encoder; a causal language model is needed"
        )


def _load_pretrained(auto: Any, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Load the auto class's model with packed attention.

    Raises UnsupportedTrainingModel when its class accepts no other attention than its own, ValueError when
    the folder lacks weights (transformers would initialise them at random).
    """
    try:
        model, report = auto.from_pretrained(
            local_copy(folder),
            dtype=dtype,
            attn_implementation=PACKED_ATTENTION,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError) as error:
        if PACKED_ATTENTION in str(error):
            raise UnsupportedTrainingModel(
                f"the model in {folder} does not accept an external attention function: {error}"
            ) from error
        raise
    if report["missing_keys"] or report.get("mismatched_keys"):
        absent = sorted(report["missing_keys"]) or sorted(str(key) for key in report["mismatched_keys"])
        raise ValueError(
            f"{folder} lacks weights of its model, or holds them in other shapes: {', '.join(absent[:5])}"
        )
    if not getattr(model, "_supports_attention_backend", False):
        raise UnsupportedTrainingModel(
            f"model type {model.config.model_type} does not accept an external attention function"
        )
    loaded: PreTrainedModel = model
    return loaded


def _init_score(config: Any, head: Head, dtype: torch.dtype, seed: int, count: int) -> nn.Linear | None:
    if head is not Head.SCORE:
        return None
    score = nn.Linear(config.get_text_config().hidden_size, count, bias=False, dtype=dtype)
    with torch.no_grad():
        score.weight.copy_(init_score_head(config, count, seed))
    return score


def _merge_scores(model: PackedModel, names: Sequence[str], attributes: Mapping[str, float] | None) -> None:
    """Replace the heads of a reward model's scores by that of their weighted sum."""
    assert model.score is not None
    head = merge_heads(model.score.weight.detach(), names, attributes)
    model.score = nn.Linear(head.shape[1], 1, bias=False, dtype=head.dtype)
    with torch.no_grad():
        model.score.weight.copy_(head)


def _load_reward_model(folder: Path, head: Head, dtype: torch.dtype) -> PackedModel:
    classifier = _load_pretrained(AutoModelForSequenceClassification, folder, dtype)
    score = getattr(classifier, "score", None)
    if not isinstance(score, nn.Linear) or score.bias is not None:
        raise UnsupportedTrainingModel(
            f"the reward model in {folder} ({type(classifier).__name__}) has no linear head named score"
        )
    return PackedModel(classifier.base_model, head, score)
