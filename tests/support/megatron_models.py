"""Tiny models of every family that the Megatron backend supports, and layouts to split them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign_services.training.megatron_backend.model.architecture import read_architecture
from kubealign_services.training.megatron_backend.weights.conversion import (
    HeadSizes,
    WeightConversion,
    build_conversions,
)
from kubealign_services.training.megatron_backend.weights.load_hf import load_weights

_SIZES = {
    "vocab_size": 37,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
_EXPERTS = {
    "moe_intermediate_size": 12,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 2,
}

#: Model type -> what its config has beside the sizes. The Qwen mixtures have dense layers too.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 5},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 20},
    "qwen3_moe": {**_EXPERTS, "head_dim": 8, "norm_topk_prob": True},
}

MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe")

LANGUAGE_MODEL = HeadSizes()


def config_of(family: str, **changes: Any) -> Any:
    """Return a tiny config of the family."""
    return AutoConfig.for_model(family, **{**_SIZES, **FAMILIES[family], **changes})


def save_model(folder: Path, config: Any, seed: int = 0, **how: Any) -> Any:
    """Create a causal language model, draw every parameter at random, and write it as transformers does.
    Returns the model.
    """
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(folder, **how)
    return model


def split(**ranks: int) -> tuple[MegatronBackendSpec, int]:
    """Return a layout by tensor, pipeline, context, expert and data, and its number of ranks."""
    spec = MegatronBackendSpec(
        tensor_parallel=ranks.get("tensor", 1),
        pipeline_parallel=ranks.get("pipeline", 1),
        context_parallel=ranks.get("context", 1),
        expert_parallel=ranks.get("expert", 1),
    )
    return spec, spec.model_parallel * ranks.get("data", 1)


def conversions_of(config: Any, heads: HeadSizes = LANGUAGE_MODEL, **ranks: int) -> list[WeightConversion]:
    """Build the conversions of all ranks in a layout, named as in `split`."""
    spec, world_size = split(**ranks)
    return build_conversions(read_architecture(config), spec, world_size, heads)


def loaded(folder: Path, conversion: WeightConversion) -> dict[str, Tensor]:
    """Read a rank's parameters as plain tensors from a folder."""
    parameters = {name: torch.full(shape, 9.0) for name, shape in conversion.shapes.items()}
    load_weights(folder, conversion, parameters)
    return parameters
