"""The vocabulary's head on a few tokens at a time: the logits of a whole pack are never there at once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

# Logits that may exist at a time: 64 MiB in fp32.
_LOGITS = 1 << 24


class HeadGradients:
    """What flows back through logits_of, a chunk at a time. hidden, weight, bias: the gradients, in the
    shapes and dtypes of what they are of; None for those that are not wanted."""

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: Sequence[bool], temperature: float
    ) -> None:
        """wanted: of hidden, weight and bias."""
        self._of = hidden, weight
        self._temperature = temperature
        self.hidden = torch.zeros_like(hidden) if wanted[0] else None
        self.weight = torch.zeros_like(weight) if wanted[1] else None
        self.bias = torch.zeros_like(bias) if wanted[2] and bias is not None else None

    def add(self, rows: slice, gradient: Tensor) -> None:
        """gradient: [rows, V], with respect to logits / temperature; it is overwritten."""
        hidden, weight = self._of
        gradient = gradient.div_(self._temperature) if self._temperature != 1.0 else gradient
        gradient = gradient.to(hidden.dtype)
        if self.hidden is not None:
            torch.mm(gradient, weight, out=self.hidden[rows])
        if self.weight is not None:
            self.weight.addmm_(gradient.T, hidden[rows])
        if self.bias is not None:
            self.bias += gradient.sum(0)


def chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    """The tokens, so many at a time that their logits fit."""
    size = max(1, _LOGITS // vocabulary)
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """hidden [P, H], weight [V, H], bias [V] or None -> logits / temperature, [P, V] in at least fp32."""
    logits = linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.div_(temperature) if temperature != 1.0 else logits
