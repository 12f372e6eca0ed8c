"""A model's forward pass on a CPU: by packed linear layers, and by the fused decoder where that computes the
same.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.attention.attention_plan import EngineAttentionPlan
from kubealign_services.generation.torch_engine.cpu.fused_decoder import FusedDecoder, supports_module
from kubealign_services.generation.torch_engine.cpu.onednn_linear import OneDnnLayers, patch_linear_layers

log = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor, EngineAttentionPlan, Tensor | None], Tensor]

# Largest difference of logits, as a share of the largest logit: many times the rounding error of another
# order of operations.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.1}


class VerifiedFastForward:
    """A fast forward pass, verified against the model's modules at the first pass.

    Where the results differ by more than rounding, the modules are used from then on.
    """

    def __init__(
        self, module: Any, windows: dict[int, int | None], dtype: torch.dtype, by_modules: Forward
    ) -> None:
        self._module_forward = by_modules
        self._dtype = dtype
        self._module_products = OneDnnLayers(dtype)
        patch_linear_layers(module, self._module_products)
        self._products = OneDnnLayers(dtype)
        self._fused = FusedDecoder(module, self._products, windows) if supports_module(module) else None
        self._is_verified = False

    def invalidate_weights(self) -> None:
        """Drop everything derived from the weights, which are about to change or have changed."""
        self._module_products.invalidate()
        self._products.invalidate()
        if self._fused is not None:
            self._fused.invalidate_weights()

    def forward(
        self, tokens: Tensor, positions: Tensor, plan: EngineAttentionPlan, keep: Tensor | None
    ) -> Tensor:
        """Compute logits; see `CausalModel.forward`."""
        if self._fused is None:
            return self._module_forward(tokens, positions, plan, keep)
        logits = self._fused.forward(tokens, positions, plan, keep)
        if self._is_verified:
            return logits
        # The modules overwrite the keys and values that are not verified yet.
        expected = self._module_forward(tokens, positions, plan, keep)
        self._verify(logits, expected)
        # Repeated, so that the first pass has the same last bits as later ones.
        return self._fused.forward(tokens, positions, plan, keep) if self._is_verified else expected

    def _verify(self, logits: Tensor, expected: Tensor) -> None:
        largest = float(expected.abs().max()) if expected.numel() else 0.0
        if not 0 < largest < float("inf"):
            # No logits, NaN or zeros verify nothing.
            return
        apart = float((logits - expected).abs().max())
        if apart <= _TOLERANCES[self._dtype] * largest:
            self._is_verified = True
            # The fused decoder has its own packed weights.
            self._module_products.invalidate()
            return
        log.warning(
            "falling back to the model's modules: the fused decoder's logits differ by %g, largest logit %g",
            apart,
            largest,
        )
        self._fused = None
        self._products.invalidate()
