"""What megatron-core needs to run on a machine without CUDA, or without Transformer Engine. Where these are,
all of this does nothing.

Its code asks CUDA for the current device, for streams and for a synchronisation, makes tensors on "cuda", and
moves them with `Tensor.cuda()`. Without CUDA each of these means the CPU. Its experts' tokens go between
ranks in pieces of different lengths. The replacements hold only while `megatron_arithmetic` does: while a
model is made, and during its passes.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


@contextlib.contextmanager
def megatron_arithmetic() -> Iterator[None]:
    """Within it, megatron-core's modules, their passes and its schedules may be made and run."""
    if not hasattr(moe_utils, "te_general_gemm"):
        # Its router asks whether this is None, and 0.16 forgets to say so where the import fails.
        moe_utils.te_general_gemm = None
    if torch.cuda.is_available():
        yield
        return
    with (
        patch.object(torch.cuda, "current_device", lambda: _CPU),
        patch.object(torch.cuda, "synchronize", lambda *_: None),
        patch.object(torch.cuda, "Stream", _Stream),
        patch.object(torch.cuda, "current_stream", lambda *_: _THE_STREAM),
        patch.object(torch.cuda, "stream", lambda _: contextlib.nullcontext()),
        patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
        patch.object(dist, "all_gather", _all_gather),
        patch.object(dist, "reduce_scatter", _reduce_scatter),
        patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", _as_if_moved),
        _OnCpu(),
    ):
        yield


def _as_if_moved(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """megatron-core's own gives numpy's arrays, which the sizes of an all-to-all must be, for CUDA tensors
    only."""
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


_GATHER, _SCATTER = dist.all_gather, dist.reduce_scatter


def _all_gather(found: list[Tensor], mine: Tensor, *arguments: Any, **options: Any) -> Any:
    """Of pieces of different lengths too, which gloo refuses: experts get different numbers of tokens."""
    longest = max(len(piece) for piece in found)
    if all(len(piece) == longest for piece in found):
        return _GATHER(found, mine, *arguments, **options)
    padded = mine.new_zeros(longest, *mine.shape[1:])
    padded[: len(mine)] = mine
    whole = [torch.empty_like(padded) for _ in found]
    work = _GATHER(whole, padded, *arguments, **options)
    for piece, longer in zip(found, whole, strict=True):
        piece.copy_(longer[: len(piece)])
    return work


def _reduce_scatter(mine: Tensor, pieces: list[Tensor], *_: Any, group: Any = None) -> Any:
    """Of pieces of different lengths too."""
    if all(len(piece) == len(mine) for piece in pieces):
        return _SCATTER(mine, pieces, group=group)
    whole = torch.cat(pieces)
    dist.all_reduce(whole, group=group)
    lengths = [len(piece) for piece in pieces]
    mine.copy_(torch.split(whole, lengths)[dist.get_rank(group)])
    return None


class _Stream:
    """The order in which a CPU does things. It is its own event: what was asked for is done."""

    def wait_stream(self, _: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self) -> "_Stream":
        return self


_THE_STREAM = _Stream()


class _OnCpu(TorchFunctionMode):
    """Reads "cuda" as the CPU, where a tensor is made."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
        return func(*args, **kwargs)
