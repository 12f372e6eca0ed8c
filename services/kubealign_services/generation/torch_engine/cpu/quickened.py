"""A model's forward pass on a CPU: by packed linear layers, and by the fused decoder where that computes the
same.
"""

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

# Largest difference of logits, as a share of the largest logit: many times the rounding error of another
# order of operations.
_ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.1}


class Quickened:
    """A fast forward pass, verified against the model's modules at the first pass.

    Where the results differ by more than rounding, the modules are used from then on.
    """

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
        """Drop everything derived from the weights, which are about to change or have changed."""
        self._module_products.forget()
        self._products.forget()
        if self._quick is not None:
            self._quick.renewed()

    def forward(self, tokens: Tensor, positions: Tensor, plan: AttentionPlan, keep: Tensor | None) -> Tensor:
        """Compute logits; see `CausalModel.forward`."""
        if self._quick is None:
            return self._by_modules(tokens, positions, plan, keep)
        logits = self._quick.forward(tokens, positions, plan, keep)
        if self._proven:
            return logits
        # The modules overwrite the keys and values that are not verified yet.
        expected = self._by_modules(tokens, positions, plan, keep)
        self._compare(logits, expected)
        # Repeated, so that the first pass has the same last bits as later ones.
        return self._quick.forward(tokens, positions, plan, keep) if self._proven else expected

    def _compare(self, logits: Tensor, expected: Tensor) -> None:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        if not 0 < largest < float("inf"):
            # No logits, NaN or zeros verify nothing.
            return
        apart = float((logits - expected).abs().max())
        if apart <= _ROUNDING[self._dtype] * largest:
            self._proven = True
            # The fused decoder has its own packed weights.
            self._module_products.forget()
            return
        log.warning(
            "falling back to the model's modules: the fused decoder's logits differ by %g, largest logit %g",
            apart,
            largest,
        )
        self._quick = None
        self._products.forget()
