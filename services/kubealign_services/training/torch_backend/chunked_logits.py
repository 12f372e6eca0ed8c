"""The vocabulary's head on a few tokens at a time: the logits of a whole pack are never there at once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kubealign_services.training.torch_backend.cpu_linear import product

# Logits that may exist at a time: 64 MiB in fp32.
_LOGITS = 1 << 24
# On a CPU the elementwise passes take as many at a time as its caches hold: 2 MiB in fp32.
_CACHED = 1 << 19


class HeadGradients:
    """What flows back through logits_of, a chunk at a time. hidden, weight, bias: the gradients, in the
    shapes and dtypes of what they are of; None for those that are not wanted, and before the first chunk."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: Sequence[bool], temperature: float
    ) -> None:
        """wanted: of hidden, weight and bias."""
        self._of = hidden, weight
        self._wanted = wanted[0], wanted[1], wanted[2] and bias is not None
        self._temperature = temperature
        self.hidden = torch.zeros_like(hidden) if self._wanted[0] else None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, rows: slice, gradient: Tensor) -> None:
        """gradient: [rows, V], with respect to logits / temperature; it is overwritten."""
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
    """Whether the logits of so many tokens may all be there at once: then they are one chunk."""
    return tokens * vocabulary <= _LOGITS


def chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    """The tokens, so many at a time that their logits fit; one empty chunk where there are none."""
    return _slices(0, max(1, tokens), max(1, _LOGITS // vocabulary), tokens)


def cached(rows: slice, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """A chunk's rows, so many at a time that what is computed of them stays in a CPU's caches."""
    size = max(1, _CACHED // vocabulary) if device.type == "cpu" else max(1, rows.stop - rows.start)
    return _slices(rows.start, rows.stop, size, rows.stop)


def _slices(start: int, stop: int, size: int, most: int) -> Iterator[slice]:
    return (slice(first, min(first + size, most)) for first in range(start, stop, size))


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """hidden [P, H], weight [V, H], bias [V] or None -> logits / temperature, [P, V] in at least fp32.
    Without a gradient."""
    logits = product(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.div_(temperature) if temperature != 1.0 else logits
