"""RMS normalisation (Zhang and Sennrich 2019) as Hugging Face's models compute it, for layers of
megatron-core.

megatron-core's own, without Transformer Engine or apex, refuses sequence parallelism.
"""

from typing import Any

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """RMS normalisation (Zhang and Sennrich 2019) as Hugging Face's models compute it: weight x /
    sqrt(mean(x^2) + eps) over the
    last dimension, the mean in at least fp32.

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
