"""Linear layers on a CPU by oneDNN, whose products with weights in its own layout take a half to a quarter of
the time of torch's `linear` for the few rows of a decoding pass.

The operators are torch's own (its compiler uses them), but not public: they are tested before use, and
`linear` is used where they are missing or behave differently.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from kubealign_services.runtime.free_memory import free_bytes

# Share of the free memory that the packed copies of the weights may take. Without packing, products take a
# fifth longer for many rows and up to twice as long for few.
MAX_PACKED_SHARE = 0.25
# Number of rows for which weights are packed; the layout also works well for fewer and more.
_ROWS = 64


class OneDnnLayers:
    """The linear layers of one model, whose weights change from time to time: all are packed, or none."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Create an empty collection.

        Args:
            dtype: Dtype of the weights.
        """
        self.is_supported = is_supported(dtype)
        self._layers: list[OneDnnLinear] = []
        self._should_pack: bool | None = None

    def add(self, *layers: torch.nn.Linear) -> "OneDnnLinear":
        """Return the layers' concatenated outputs for one input, as one operation."""
        product = OneDnnLinear(self, layers)
        self._layers.append(product)
        return product

    def invalidate(self) -> None:
        """Drop the packed weights: the weights are about to change, or have changed."""
        self._should_pack = None
        for product in self._layers:
            product.invalidate()

    def should_pack(self) -> bool:
        """Return True where the memory suffices for a second copy; decided once for each set of weights."""
        if self._should_pack is None:
            size = sum(product.nbytes for product in self._layers)
            self._should_pack = self.is_supported and size <= MAX_PACKED_SHARE * free_bytes(
                torch.device("cpu")
            )
        return self._should_pack


class OneDnnLinear:
    """Maps x [..., inputs] to x times the transpose of the weights, plus the bias if there is one."""

    def __init__(self, products: OneDnnLayers, layers: Sequence[torch.nn.Linear]) -> None:
        self._owner = products
        self._layers = layers
        self._parts: list[tuple[Tensor, Tensor | None]] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(layer.weight.nbytes for layer in self._layers)

    def invalidate(self) -> None:
        self._parts = None

    def __call__(self, x: Tensor) -> Tensor:
        if not len(x):
            return linear(x, *_merge_layers(self._layers))
        return self._concatenate([self._linear(x, *part) for part in self._packed_parts()])

    def fused_silu(self, x: Tensor) -> Tensor:
        """Return silu of the output."""
        if not self._owner.is_supported:
            return silu(self(x))
        parts = self._packed_parts()
        return self._concatenate(
            [torch.ops.mkldnn._linear_pointwise(x, *part, "swish", [], "") for part in parts]
        )

    def fused_multiply(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the output times `other`, element by element."""
        return self._fused_binary(x, other, "mul")

    def fused_add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the output plus `other`, element by element."""
        return self._fused_binary(x, other, "add")

    def _fused_binary(self, x: Tensor, other: Tensor, what: str) -> Tensor:
        parts = self._packed_parts()
        if not self._owner.is_supported or len(parts) > 1:
            return self(x) * other if what == "mul" else self(x) + other
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, *parts[0], what)
        return result

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._owner.is_supported:
            return linear(x, weight, bias)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return result

    @staticmethod
    def _concatenate(parts: list[Tensor]) -> Tensor:
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _packed_parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return weights and biases, packed at the first pass after they have changed."""
        if self._parts is None:
            if not self._owner.should_pack():
                self._parts = [(layer.weight.detach(), layer.bias) for layer in self._layers]
            else:
                weight, bias = _merge_layers(self._layers)
                self._parts = [(torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS), bias)]
        return self._parts


def _merge_layers(layers: Sequence[torch.nn.Linear]) -> tuple[Tensor, Tensor | None]:
    weights = [layer.weight.detach() for layer in layers]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if all(layer.bias is None for layer in layers):
        return weight, None
    biases = [
        torch.zeros(layer.out_features, dtype=weight.dtype) if layer.bias is None else layer.bias.detach()
        for layer in layers
    ]
    return weight, torch.cat(biases)


def patch_linear_layers(module: torch.nn.Module, products: OneDnnLayers) -> None:
    """Replace the forward function of each linear layer of a model.

    The modules keep their hooks, names and weights.
    """
    if products.is_supported:
        for layer in module.modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = products.add(layer).__call__  # type: ignore[method-assign, assignment]


@lru_cache
def is_supported(dtype: torch.dtype) -> bool:
    """Return True where this machine has the operators for weights of this dtype, and they agree with
    `linear`.
    """
    if dtype == torch.bfloat16 and not _has_fast_bfloat16():
        return False
    generator = torch.Generator().manual_seed(1)
    x, weight, other, bias = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((3, 33), (17, 33), (3, 17), (17,))
    )
    expected = linear(x, weight, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 0.1
    return _matches_linear(
        lambda op, packed: [
            op(x, packed, bias, "none", [], ""),
            op(x, packed, bias, "swish", [], ""),
            op.binary(x, other, packed, bias, "mul"),
            op.binary(x, other, packed, bias, "add"),
            op(x, weight, bias, "none", [], ""),
        ],
        weight,
        [expected, silu(expected), expected * other, expected + other, expected],
        tolerance,
    )


def _matches_linear(
    run: Callable[[Any, Tensor], list[Tensor]], weight: Tensor, expected: list[Tensor], tolerance: float
) -> bool:
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        actual = run(torch.ops.mkldnn._linear_pointwise, packed)
    except (AttributeError, RuntimeError, TypeError):  # no such operator, or one with another signature
        return False
    return all(
        torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in zip(actual, expected, strict=True)
    )


def _has_fast_bfloat16() -> bool:
    """Return True where the processor has bfloat16 instructions: without them oneDNN is slower than in
    float32.
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
