"""The language-model head in chunks of tokens: the logits of a whole pack never exist at once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kubealign_services.training.torch_backend.cpu_linear import product

# Limit of logits that exist at a time: 64 MiB in fp32.
_CHUNK_LOGITS = 1 << 24
# Block of the elementwise passes on a CPU, sized for its caches: 2 MiB in fp32.
_CACHED = 1 << 19


class HeadGradients:
    """Accumulates the gradients of `compute_logits`, a chunk at a time.

    Attributes:
        hidden, weight, bias: The gradients, in the shapes and dtypes of their inputs; None when not
        needed, and before the
            first chunk.
    """

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: Sequence[bool], temperature: float
    ) -> None:
        """Allocate the accumulators.

        Args:
            wanted: Flags for hidden, weight and bias: whether a gradient is needed.
        """
        self._of = hidden, weight
        self._wanted = wanted[0], wanted[1], wanted[2] and bias is not None
        self._temperature = temperature
        self.hidden = torch.zeros_like(hidden) if self._wanted[0] else None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, rows: slice, gradient: Tensor) -> None:
        """Accumulate the gradient of one chunk.

        Args:
            gradient: [rows, V], with respect to logits / temperature; overwritten.
        """
        hidden, weight = self._of
        gradient = gradient.div_(self._temperature) if self._temperature != 1.0 else gradient
        gradient = gradient.to(hidden.dtype)
        if self.hidden is not None:
            self.hidden[rows] = product(gradient, weight.T)
        if self._wanted[1]:
            if self.weight is None:
                self.weight = product(gradient.T, hidden[rows].T)
            else:
                self.weight.addmm_(gradient.T, hidden[rows])
        if self._wanted[2]:
            self.bias = gradient.sum(0) if self.bias is None else self.bias.add_(gradient.sum(0))


def fit(tokens: int, vocabulary: int) -> bool:
    """Return True when the logits of this many tokens fit into one chunk."""
    return tokens * vocabulary <= _CHUNK_LOGITS


def chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    """Yield slices of tokens whose logits fit into the chunk limit; one empty slice for no tokens."""
    return _slices(0, max(1, tokens), max(1, _CHUNK_LOGITS // vocabulary), tokens)


def cached(rows: slice, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Yield blocks of a chunk's rows, small enough for intermediate results to stay in a CPU's caches."""
    size = max(1, _CACHED // vocabulary) if device.type == "cpu" else max(1, rows.stop - rows.start)
    return _slices(rows.start, rows.stop, size, rows.stop)


def _slices(start: int, stop: int, size: int, most: int) -> Iterator[slice]:
    return (slice(first, min(first + size, most)) for first in range(start, stop, size))


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """Return logits / temperature, [P, V] in at least fp32, without a gradient.

    Args:
        hidden: [P, H].
        weight: [V, H].
        bias: [V] or None.
    """
    logits = product(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.div_(temperature) if temperature != 1.0 else logits
