"""A model's forward pass on a CPU: by packed products, and in few operations where that computes the
same."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.attention import AttentionPlan
from kubealign_services.generation.torch_engine.cpu.decoder import QuickDecoder, fits
from kubealign_services.generation.torch_engine.cpu.products import Products, use_products

log = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor, AttentionPlan, Tensor | None], Tensor]

# How far the logits may be apart, as a share of the largest of them: what rounding makes of another order of
# operations, many times over.
_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.1}


class Quickened:
    """The first pass is made both ways. Where they differ by more than rounding, the modules are used for
    good."""

    def __init__(
        self, module: Any, windows: dict[int, int | None], dtype: torch.dtype, by_modules: Forward
    ) -> None:
        self._by_modules = by_modules
        self._dtype = dtype
        self._module_products = Products(dtype)
        use_products(module, self._module_products)
        self._products = Products(dtype)
        self._quick = QuickDecoder(module, self._products, windows) if fits(module) else None
        self._proven = False

    def renewed(self) -> None:
        """The weights are about to change, or have."""
        self._module_products.forget()
        self._products.forget()
        if self._quick is not None:
            self._quick.renewed()

    def forward(self, tokens: Tensor, positions: Tensor, plan: AttentionPlan, keep: Tensor | None) -> Tensor:
        """As `CausalModel.forward`."""
        if self._quick is None:
            return self._by_modules(tokens, positions, plan, keep)
        found = self._quick.forward(tokens, positions, plan, keep)
        if self._proven:
            return found
        # The modules' keys and values are written over those that are not proven yet.
        expected = self._by_modules(tokens, positions, plan, keep)
        self._compare(found, expected)
        # Once more, so that the first pass has the same last bits as those that follow.
        return self._quick.forward(tokens, positions, plan, keep) if self._proven else expected

    def _compare(self, found: Tensor, expected: Tensor) -> None:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        if not 0 < largest < float("inf"):
            # What proves nothing: no logits, NaN, or zeros.
            return
        apart = float((found - expected).abs().max())
        if apart <= _ROUNDING[self._dtype] * largest:
            self._proven = True
            # The quick way has products of its own.
            self._module_products.forget()
            return
        log.warning(
            "the model's own modules are used, for the quick way's logits are %g from theirs, of at most %g",
            apart,
            largest,
        )
        self._quick = None
        self._products.forget()
