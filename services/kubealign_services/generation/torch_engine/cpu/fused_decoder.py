"""A fused decoder for Llama-like models: each layer is five matrix products, two norms, one rotation and the
attention, where its modules make some sixty calls.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from kubealign_services.generation.torch_engine.attention.attention_plan import EngineAttentionPlan
from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import Array, element_array
from kubealign_services.generation.torch_engine.cpu.layer_kernels import apply_rotary, rms_norm
from kubealign_services.generation.torch_engine.cpu.onednn_linear import OneDnnLayers, OneDnnLinear

#: Model types with layers of this shape; their output is still compared with that of their modules.
FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3"})
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj"}
_NORMS = {"input_layernorm", "post_attention_layernorm"}
# Rotation tables grow by this number of positions.
_POSITION_BLOCK = 256


@dataclass(frozen=True)
class _Layer:
    """The modules of a decoder layer, and the linear layers built from them."""

    index: int
    module: Any
    window: int | None
    heads: int
    key_heads: int
    width: int
    qkv_proj: OneDnnLinear
    output_proj: OneDnnLinear
    gate: OneDnnLinear
    up: OneDnnLinear
    down: OneDnnLinear


class FusedDecoder:
    """Forward pass of the whole model over the weights of its modules."""

    def __init__(self, module: Any, products: OneDnnLayers, windows: dict[int, int | None]) -> None:
        """Build the decoder.

        Args:
            windows: Attention window by layer, as the layer's attention passes it on.
        """
        self._module = module
        self._model = module.model
        self._layers = [
            _build_layer(layer, products, windows[layer.self_attn.layer_idx]) for layer in module.model.layers
        ]
        self._head = products.add(module.lm_head)
        self._cosines = self._sines = np.zeros((0, 0), np.float32)
        # Weight copies by norm id: torch cannot resize, and so not offload, a tensor shared with numpy.
        self._norms: dict[int, Array] = {}

    def invalidate_weights(self) -> None:
        """Drop everything derived from the weights, which are about to change or have changed."""
        self._norms.clear()

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: EngineAttentionPlan, keep: Tensor | None
    ) -> Tensor:
        """Compute logits; see `CausalModel.forward`."""
        at = positions.numpy()
        self._extend_rotations(int(at.max()) + 1)
        states = embedding(tokens, self._model.embed_tokens.weight)
        for layer in self._layers:
            part = layer.module
            attended = self._attention(layer, self._normalised(states, part.input_layernorm), at, plan)
            if layer is self._layers[-1] and keep is not None and len(keep) != len(states):
                # For the other tokens only keys and values are needed.
                attended, states = attended[keep], states[keep]
            states = layer.output_proj.fused_add(attended, states)
            normal = self._normalised(states, part.post_attention_layernorm)
            states = layer.down.fused_add(
                layer.up.fused_multiply(normal, layer.gate.fused_silu(normal)), states
            )
        return self._head(self._normalised(states, self._model.norm)).float()

    def _attention(self, layer: _Layer, states: Tensor, at: Array, plan: EngineAttentionPlan) -> Tensor:
        """Return the attention output of all heads, [T, heads * width]."""
        own = layer.module.self_attn
        projected = layer.qkv_proj(states)
        keys_from = layer.heads * layer.width
        values_from = keys_from + layer.key_heads * layer.width
        queries = self._rotated_heads(
            projected, layer.heads, layer.width, 0, at, getattr(own, "q_norm", None)
        )
        keys = self._rotated_heads(
            projected, layer.key_heads, layer.width, keys_from, at, getattr(own, "k_norm", None)
        )
        values = projected[:, values_from:].view(len(projected), layer.key_heads, -1)
        out = plan.attend(
            layer.index,
            queries.transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            own.scaling,
            layer.window,
        )
        return out.flatten(1)

    def _rotated_heads(
        self, projected: Tensor, heads: int, width: int, column: int, at: Array, norm: Any | None
    ) -> Tensor:
        """Return the rotated heads [T, heads, width] that begin at column `column`."""
        out = projected.new_empty(len(projected), heads, width)
        array = element_array(out)
        weight = array[:0, 0, 0] if norm is None else self._norm_weight(norm)
        epsilon = np.float32(0 if norm is None else norm.variance_epsilon)
        apply_rotary(element_array(projected), column, weight, epsilon, at, self._cosines, self._sines, array)
        return out

    def _normalised(self, states: Tensor, norm: Any) -> Tensor:
        out = torch.empty_like(states)
        rms_norm(
            element_array(states),
            self._norm_weight(norm),
            np.float32(norm.variance_epsilon),
            element_array(out),
        )
        return out

    def _norm_weight(self, norm: Any) -> Array:
        if id(norm) not in self._norms:
            self._norms[id(norm)] = element_array(norm.weight.detach().clone())
        return self._norms[id(norm)]

    def _extend_rotations(self, positions: int) -> None:
        """Extend the rotation tables to at least this number of positions: the model's own rotations, in
        float32.
        """
        if positions > len(self._cosines):
            count = -(-positions // _POSITION_BLOCK) * _POSITION_BLOCK
            like = torch.zeros(1, dtype=torch.float32)
            cosines, sines = self._model.rotary_emb(like, torch.arange(count)[None])
            half = cosines.shape[-1] // 2
            self._cosines, self._sines = (x[0, :, :half].contiguous().numpy() for x in (cosines, sines))


def supports_module(module: Any) -> bool:
    """Return True where a model's modules are exactly those of such a decoder."""
    try:
        return (
            module.config.model_type in FAMILIES
            and _children(module) == {"model", "lm_head"}
            and _children(module.model) == {"embed_tokens", "layers", "norm", "rotary_emb"}
            and type(module.model.embed_tokens) is nn.Embedding
            and type(module.lm_head) is nn.Linear
            and all(_supports_layer(layer) for layer in module.model.layers)
        )
    except AttributeError:
        return False


def _supports_layer(layer: Any) -> bool:
    linears = [
        child
        for part in (layer.self_attn, layer.mlp)
        for name, child in part.named_children()
        if name.endswith("_proj")
    ]
    return (
        _children(layer) == {"self_attn", "mlp"} | _NORMS
        and _children(layer.self_attn) in (_ATTENTION, _ATTENTION | _HEAD_NORMS)
        and _children(layer.mlp) == _MLP | {"act_fn"}
        and type(layer.mlp.act_fn) in (nn.SiLU, _silu())
        # A hook on a layer needs the output of that layer alone.
        and all(type(each) is nn.Linear and not each._forward_hooks for each in linears)
    )


def _silu() -> type[nn.Module]:
    from transformers.activations import ACT2FN

    return type(ACT2FN["silu"])


def _children(module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_children()}


def _build_layer(module: Any, products: OneDnnLayers, window: int | None) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    width = attention.head_dim
    return _Layer(
        index=attention.layer_idx,
        module=module,
        window=window,
        heads=attention.q_proj.out_features // width,
        key_heads=attention.k_proj.out_features // width,
        width=width,
        qkv_proj=products.add(attention.q_proj, attention.k_proj, attention.v_proj),
        output_proj=products.add(attention.o_proj),
        gate=products.add(mlp.gate_proj),
        up=products.add(mlp.up_proj),
        down=products.add(mlp.down_proj),
    )
