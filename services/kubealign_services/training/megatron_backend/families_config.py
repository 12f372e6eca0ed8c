"""megatron-core's own description of a model, and the rotation of its positions."""

import math
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kubealign.spec.megatron import MegatronBackend
from kubealign_services.training.megatron_backend.families import Shape
from kubealign_services.training.torch_backend.packed_attention import UnsupportedModel

# The others depend on the length of the longest sequence.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


def rotation(config: Any) -> tuple[Tensor, float]:
    """(inverse frequencies fp32 [head size / 2], factor of sine and cosine) of a Hugging Face config, as
    transformers computes them. `GPTModel`'s `rotary_pos_emb.inv_freq` is to be set to the first; the second
    is in `transformer_config`'s softmax_scale, as its square: queries and keys are both rotated whole."""
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind not in _ROTATIONS:
        raise UnsupportedModel(
            f"trainer.backend.megatron: config.json has rope_type {kind!r}; the Megatron backend does "
            f"{', '.join(_ROTATIONS)}"
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModel(
            "trainer.backend.megatron: config.json has partial_rotary_factor "
            f"{parameters['partial_rotary_factor']}; the Megatron backend does 1.0"
        )
    if kind == "default":
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config)
    return frequencies.float(), float(factor)


def transformer_config(
    shape: Shape, spec: MegatronBackend, rotation_factor: float, dtype: torch.dtype, **execution: Any
) -> TransformerConfig:
    """The model for megatron-core's `GPTModel`. rotation_factor: the second of `rotation`. dtype: of the
    parameters. execution: further fields that change how it is run and not what is computed, such as
    recompute_granularity or use_cpu_initialization; they win over those that are set here."""
    fields: dict[str, Any] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.groups,
        "kv_channels": shape.head_size,
        "ffn_hidden_size": shape.size,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.epsilon,
        "qk_layernorm": shape.qk_norm,
        "add_bias_linear": False,
        "add_qkv_bias": shape.qkv_bias,
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "softmax_scale": rotation_factor**2 / math.sqrt(shape.head_size),
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "tensor_model_parallel_size": spec.tensor_parallel,
        "pipeline_model_parallel_size": spec.pipeline_parallel,
        "context_parallel_size": spec.context_parallel,
        "sequence_parallel": spec.sequence_parallel and spec.tensor_parallel > 1,
        "variable_seq_lengths": True,
        # Also without experts: megatron-core refuses variable lengths with its other dispatcher.
        "moe_token_dispatcher_type": "alltoall",
        "perform_initialization": False,
    }
    return TransformerConfig(**(fields | _mixture_fields(shape, spec) | execution))


def model_arguments(shape: Shape, spec: MegatronBackend, theta: float) -> dict[str, Any]:
    """What `GPTModel`'s constructor wants beside config, layer spec and stage. theta: the base of the
    rotation, whose frequencies are then replaced (see `rotation`)."""
    return {
        "vocab_size": padded_vocabulary(shape, spec.tensor_parallel),
        "max_sequence_length": shape.positions,
        "share_embeddings_and_output_weights": shape.tied,
        "position_embedding_type": "rope",
        "rotary_base": theta,
    }


def padded_vocabulary(shape: Shape, tensor: int) -> int:
    """The vocabulary's size with rows of zeros at its end, so that all tensor-parallel ranks have as many."""
    return -(-shape.vocabulary // tensor) * tensor


def _mixture_fields(shape: Shape, spec: MegatronBackend) -> dict[str, Any]:
    mixture = shape.mixture
    if mixture is None:
        return {}
    return {
        "num_moe_experts": mixture.experts,
        "moe_ffn_hidden_size": mixture.size,
        "moe_layer_freq": [int(sparse) for sparse in mixture.sparse],
        "moe_router_topk": mixture.chosen,
        # Softmax over the chosen alone is softmax over all, divided by the sum of the chosen.
        "moe_router_pre_softmax": not mixture.normalised,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_shared_expert_intermediate_size": mixture.shared or None,
        "moe_shared_expert_gate": mixture.shared > 0,
        "expert_model_parallel_size": spec.expert_parallel,
        # As megatron-core's process groups have it where nothing else is said.
        "expert_tensor_parallel_size": spec.tensor_parallel,
    }
