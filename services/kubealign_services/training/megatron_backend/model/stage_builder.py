"""Builds this rank's stage of a Hugging Face model, without its weights."""

from functools import partial
from typing import Any

import torch
from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kubealign.spec.sections.megatron import MegatronBackendSpec, Recompute
from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.megatron_backend.model.core_attention import PackedCoreAttention
from kubealign_services.training.megatron_backend.model.heads import OutputHeads
from kubealign_services.training.megatron_backend.model.stage import PipelineStage
from kubealign_services.training.megatron_backend.model.transformer_config import (
    model_arguments,
    rope_frequencies,
    transformer_config,
)
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout, layer_range
from kubealign_services.training.megatron_backend.parallel.process_groups import ParallelGroups
from kubealign_services.training.megatron_backend.weights.conversion import HeadSizes
from kubealign_services.training.torch_backend.precision import compute_dtype


def build_stage(
    config: Any,
    shape: ModelArchitecture,
    spec: MegatronBackendSpec,
    layout: ParallelLayout,
    groups: ParallelGroups,
    head: Head,
    sizes: HeadSizes,
) -> PipelineStage:
    """Build the stage; its weights are uninitialised.

    Call within `megatron_cpu_shims`. Raises UnsupportedTrainingModel.

    Args:
        config: The Hugging Face model's config.
        shape: Its architecture; it can be split as the layout says.
        sizes: Sizes of the heads.
    """
    frequencies, factor = rope_frequencies(config)
    dtype = compute_dtype(spec.precision)
    on_cuda = torch.cuda.is_available()
    core = transformer_config(
        shape,
        spec,
        factor,
        dtype,
        use_cpu_initialization=not on_cuda,
        # Losses already include their share of the mean: the pipeline schedule must not divide.
        calculate_per_token_loss=True,
        # These layers are torch's own; the fused ones need Transformer Engine or apex.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
    )
    arguments = model_arguments(shape, spec, 10000.0) | {"position_embedding_type": "none"}
    if not sizes.vocabulary:
        arguments["share_embeddings_and_output_weights"] = False
    trunk = GPTModel(
        config=core,
        transformer_layer_spec=TransformerBlockSubmodules(
            layer_specs=[
                _layer_spec(shape, spec.recompute, layer) for layer in layer_range(shape.layers, layout)
            ],
            layer_norm=RMSNorm,
        ),
        pre_process=layout.is_first_stage,
        post_process=layout.is_last_stage,
        **arguments,
    )
    heads = None
    if layout.is_last_stage:
        if not sizes.vocabulary:
            del trunk.output_layer
        heads = OutputHeads(
            head,
            shape.vocabulary if sizes.vocabulary else 0,
            nn.Linear(shape.hidden, sizes.scores, bias=False, dtype=dtype) if sizes.scores else None,
            groups,
            core.sequence_parallel,
        )
    return PipelineStage(trunk, heads, frequencies)


class RMSNorm(nn.Module):
    """RMS normalisation (Zhang and Sennrich 2019) as Hugging Face's models compute it: weight x /
    sqrt(mean(x^2) + eps) over the last dimension, the mean in at least fp32.

    megatron-core's own, without Transformer Engine or apex, refuses sequence parallelism.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        """Construct as megatron-core does.

        Args:
            config: megatron-core's TransformerConfig.
        """
        super().__init__()
        self.eps = eps
        device = "cpu" if config.use_cpu_initialization else "cuda"
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=device))
        # Each tensor rank then sees some of the tokens: the gradients are summed over the tensor ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden: Tensor) -> Tensor:
        """Normalise [..., hidden_size]. Returns the same shape and dtype."""
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(hidden.dtype)


def _layer_spec(shape: ModelArchitecture, recompute: Recompute, layer: int) -> ModuleSpec:
    """Return the spec of one layer.

    Args:
        layer: Index of the layer in the whole model.
    """
    norm = RMSNorm
    qk_norm = norm if shape.qk_norm else IdentityOp
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=ColumnParallelLinear,
            core_attention=partial(
                PackedCoreAttention,
                window=shape.windows[layer],
                recompute=recompute is Recompute.ATTENTION,
            ),
            linear_proj=RowParallelLinear,
            q_layernorm=qk_norm,
            k_layernorm=qk_norm,
        ),
    )
    if shape.mixture is not None and shape.is_sparse(layer):
        mlp = get_moe_module_spec(use_te=False, num_experts=shape.mixture.experts, moe_grouped_gemm=False)
    else:
        mlp = ModuleSpec(
            module=MLP,
            submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
        )
    return ModuleSpec(
        module=_RecomputedLayer if recompute is Recompute.LAYERS else TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=norm,
            mlp=mlp,
            mlp_bda=get_bias_dropout_add,
        ),
    )


class _RecomputedLayer(TransformerLayer):  # type: ignore[misc]  # megatron-core has no types
    """Stores only its input for the backward pass.

    Uses torch's checkpoint: megatron-core's does not run without CUDA's RNG.
    """

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Any:
        """See TransformerLayer."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(hidden_states, **kwargs)
        return checkpoint(super().forward, hidden_states, use_reentrant=False, **kwargs)
