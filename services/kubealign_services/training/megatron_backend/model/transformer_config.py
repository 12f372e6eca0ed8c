"""megatron-core's configuration of a model, and its rotary position embedding."""

import math
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.torch_backend.packing.packed_attention import UnsupportedTrainingModel

# The other types depend on the length of the longest sequence.
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rope_frequencies(config: Any) -> tuple[Tensor, float]:
    """Return (inverse frequencies fp32 [head size / 2], factor of sine and cosine) of a Hugging Face config,
    as transformers computes them.

    The first replaces `rotary_pos_emb.inv_freq` of `GPTModel`; the square of the second goes into the
    softmax_scale of `transformer_config`: queries and keys are both rotated in full.
    """
    parameters = config.rope_parameters
    kind = parameters.get("rope_type", "default")
    if kind not in _ROPE_TYPES:
        raise UnsupportedTrainingModel(
            f"trainer.backend.megatron: config.json has rope_type {kind!r}; the Megatron backend supports "
            f"{', '.join(_ROPE_TYPES)}"
        )
    if parameters.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedTrainingModel(
            "trainer.backend.megatron: config.json has partial_rotary_factor "
            f"{parameters['partial_rotary_factor']}; the Megatron backend supports 1.0"
        )
    if kind == "default":
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
        return 1.0 / (parameters["rope_theta"] ** exponents), 1.0
    frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config)
    return frequencies.float(), float(factor)


def transformer_config(
    shape: ModelArchitecture,
    spec: MegatronBackendSpec,
    rotation_factor: float,
    dtype: torch.dtype,
    **execution: Any,
) -> TransformerConfig:
    """Return the config for megatron-core's `GPTModel`.

    Args:
        rotation_factor: Second result of `rope_frequencies`.
        dtype: Dtype of the parameters.
        execution: Further fields that affect execution but not results, such as recompute_granularity or
            use_cpu_initialization; they override the fields set here.
    """
    fields: dict[str, Any] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "kv_channels": shape.head_size,
        "ffn_hidden_size": shape.mlp_size,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_epsilon,
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
        # Needed without experts too: megatron-core refuses variable lengths with its other dispatcher.
        "moe_token_dispatcher_type": "alltoall",
        "perform_initialization": False,
    }
    return TransformerConfig(**(fields | _mixture_fields(shape, spec) | execution))


def model_arguments(shape: ModelArchitecture, spec: MegatronBackendSpec, theta: float) -> dict[str, Any]:
    """Return the arguments of `GPTModel` other than config, layer spec and stage.

    Args:
        theta: Base of the rotation, whose frequencies are then replaced (see `rope_frequencies`).
    """
    return {
        "vocab_size": padded_vocabulary(shape, spec.tensor_parallel),
        "max_sequence_length": shape.positions,
        "share_embeddings_and_output_weights": shape.tied,
        "position_embedding_type": "rope",
        "rotary_base": theta,
    }


def padded_vocabulary(shape: ModelArchitecture, tensor: int) -> int:
    """Return the vocabulary's size, padded with rows of zeros so that all tensor-parallel ranks have equally
    many.
    """
    return -(-shape.vocabulary // tensor) * tensor


def _mixture_fields(shape: ModelArchitecture, spec: MegatronBackendSpec) -> dict[str, Any]:
    mixture = shape.mixture
    if mixture is None:
        return {}
    return {
        "num_moe_experts": mixture.experts,
        "moe_ffn_hidden_size": mixture.expert_size,
        "moe_layer_freq": [int(sparse) for sparse in mixture.sparse],
        "moe_router_topk": mixture.top_k,
        # Softmax over the top-k alone is softmax over all, divided by the sum of the top-k.
        "moe_router_pre_softmax": not mixture.is_normalised,
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
        "moe_shared_expert_intermediate_size": mixture.shared_expert_size or None,
        "moe_shared_expert_gate": mixture.shared_expert_size > 0,
        "expert_model_parallel_size": spec.expert_parallel,
        # The default of megatron-core's process groups.
        "expert_tensor_parallel_size": spec.tensor_parallel,
    }
