"""The language-model head in chunks of tokens: the logits of a whole pack never exist at once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from kubealign_services.training.torch_backend.model.cpu_linear import linear_no_grad

# Limit of logits that exist at a time: 64 MiB in fp32.
_CHUNK_LOGITS = 1 << 24
# Block of the elementwise passes on a CPU, sized for its caches: 2 MiB in fp32.
_CACHE_LOGITS = 1 << 19


#: Divisor of the logits, above 0: one for all positions, or a floating-point tensor [P] with one for each.
Temperature = float | Tensor


class HeadGradients:
    """Accumulates the gradients of `compute_logits`, a chunk at a time.

    Attributes:
        hidden, weight, bias: The gradients, in the shapes and dtypes of their inputs; None when not
        needed, and before the
        first chunk.
    """

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        needed: Sequence[bool],
        temperature: Temperature,
        softcap: float | None = None,
    ) -> None:
        """Allocate the accumulators.

        Args:
            needed: Flags for hidden, weight and bias: whether a gradient is needed.
            softcap: See `compute_logits`.
        """
        self._inputs = hidden, weight
        self._needed = needed[0], needed[1], needed[2] and bias is not None
        self._temperature = temperature
        self._softcap = softcap
        self.hidden = torch.zeros_like(hidden) if self._needed[0] else None
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def cap_slope(self, rows: slice, logits: Tensor) -> Tensor | None:
        """Return the derivative of the capped logits of one chunk, 1 - tanh^2, [rows, V]; None without a cap.

        Args:
            logits: Result of `compute_logits`; not modified.
        """
        if self._softcap is None:
            return None
        temperature = self._temperature
        if isinstance(temperature, Tensor):
            temperature = temperature[rows].to(logits.dtype)[:, None]
        return (logits * (temperature / self._softcap)).square_().neg_().add_(1)

    def add(self, rows: slice, gradient: Tensor, cap_slope: Tensor | None = None) -> None:
        """Accumulate the gradient of one chunk.

        Args:
            gradient: [rows, V], with respect to logits / temperature; overwritten.
            cap_slope: Result of `cap_slope` for the chunk.
        """
        hidden, weight = self._inputs
        gradient = _divide(gradient, self._temperature, rows)
        if cap_slope is not None:
            gradient.mul_(cap_slope)
        gradient = gradient.to(hidden.dtype)
        if self.hidden is not None:
            self.hidden[rows] = linear_no_grad(gradient, weight.T)
        if self._needed[1]:
            if self.weight is None:
                self.weight = linear_no_grad(gradient.T, hidden[rows].T)
            else:
                self.weight.addmm_(gradient.T, hidden[rows])
        if self._needed[2]:
            self.bias = gradient.sum(0) if self.bias is None else self.bias.add_(gradient.sum(0))


def fits_one_chunk(tokens: int, vocabulary: int) -> bool:
    """Return True when the logits of this many tokens fit into one chunk."""
    return tokens * vocabulary <= _CHUNK_LOGITS


def logit_chunks(tokens: int, vocabulary: int) -> Iterator[slice]:
    """Yield slices of tokens whose logits fit into the chunk limit; one empty slice for no tokens."""
    return _row_slices(0, max(1, tokens), max(1, _CHUNK_LOGITS // vocabulary), tokens)


def cache_blocks(rows: slice, vocabulary: int, device: torch.device) -> Iterator[slice]:
    """Yield blocks of a chunk's rows, small enough for intermediate results to stay in a CPU's caches."""
    size = max(1, _CACHE_LOGITS // vocabulary) if device.type == "cpu" else max(1, rows.stop - rows.start)
    return _row_slices(rows.start, rows.stop, size, rows.stop)


def _row_slices(start: int, stop: int, size: int, most: int) -> Iterator[slice]:
    return (slice(first, min(first + size, most)) for first in range(start, stop, size))


def compute_logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: Temperature,
    rows: slice,
    softcap: float | None = None,
) -> Tensor:
    """Return logits / temperature of a chunk of positions, [rows, V] in at least fp32, without a gradient.

    Args:
        hidden: [P, H].
        weight: [V, H].
        bias: [V] or None.
        rows: Positions of the chunk.
        softcap: The head's logits z become softcap * tanh(z / softcap), as in Gemma 2, before the temperature
            divides them; None: they stay as they are.
    """
    logits = linear_no_grad(hidden[rows], weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    return _divide(logits, temperature, rows)


def _divide(values: Tensor, temperature: Temperature, rows: slice) -> Tensor:
    """Divide values [rows, V] in place by the temperature of these positions."""
    if isinstance(temperature, Tensor):
        return values.div_(temperature[rows].to(values.dtype)[:, None])
    return values.div_(temperature) if temperature != 1.0 else values
