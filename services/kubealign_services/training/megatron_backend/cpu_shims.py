"""Shims that let megatron-core run without CUDA or without Transformer Engine. With both, they do nothing.

megatron-core asks CUDA for the current device, for streams and for a synchronisation, creates tensors on
"cuda", and moves them with `Tensor.cuda()`. Without CUDA each of these is redirected to the CPU. Its experts
exchange tokens between ranks in pieces of different lengths. The replacements are active only within
`megatron_cpu_shims`: while a model is built, and during its passes.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")
_INHERITED = object()


@contextlib.contextmanager
def megatron_cpu_shims() -> Iterator[None]:
    """Activate the shims. megatron-core's modules, passes and schedules are built and run within this
    block.
    """
    if not hasattr(moe_utils, "te_general_gemm"):
        # The router checks whether this is None, and 0.16 does not define it when the import fails.
        moe_utils.te_general_gemm = None
    if torch.cuda.is_available():
        yield
        return
    with _replaced(_REPLACEMENTS), _CpuDeviceMode():
        yield


@contextlib.contextmanager
def _replaced(replacements: Sequence[tuple[Any, str, object]]) -> Iterator[None]:
    """Replace attributes, given as (owner, name, replacement), within the block."""
    originals = [(owner, name, vars(owner).get(name, _INHERITED)) for owner, name, _ in replacements]
    try:
        for owner, name, replacement in replacements:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in originals:
            if original is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _move_tensor_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Convert to numpy as requested. megatron-core's own function does so for CUDA tensors only, but the
    sizes of an all-to-all must be numpy arrays.
    """
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


_ORIGINAL_ALL_GATHER, _ORIGINAL_REDUCE_SCATTER = dist.all_gather, dist.reduce_scatter


def _all_gather(outputs: list[Tensor], own: Tensor, *arguments: Any, **options: Any) -> Any:
    """All-gather that also accepts pieces of different lengths, which gloo refuses: experts get different
    numbers of tokens.
    """
    longest = max(len(piece) for piece in outputs)
    if all(len(piece) == longest for piece in outputs):
        return _ORIGINAL_ALL_GATHER(outputs, own, *arguments, **options)
    padded = own.new_zeros(longest, *own.shape[1:])
    padded[: len(own)] = own
    padded_outputs = [torch.empty_like(padded) for _ in outputs]
    work = _ORIGINAL_ALL_GATHER(padded_outputs, padded, *arguments, **options)
    for piece, padded_output in zip(outputs, padded_outputs, strict=True):
        piece.copy_(padded_output[: len(piece)])
    return work


def _reduce_scatter(own: Tensor, pieces: list[Tensor], *_: Any, group: Any = None) -> Any:
    """Reduce-scatter that also accepts pieces of different lengths."""
    if all(len(piece) == len(own) for piece in pieces):
        return _ORIGINAL_REDUCE_SCATTER(own, pieces, group=group)
    summed = torch.cat(pieces)
    dist.all_reduce(summed, group=group)
    lengths = [len(piece) for piece in pieces]
    own.copy_(torch.split(summed, lengths)[dist.get_rank(group)])
    return None


class _CpuStream:
    """A stream on a CPU, which executes in order. It is its own event: all submitted work is done."""

    def wait_stream(self, _: object) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self) -> "_CpuStream":
        return self


_CPU_STREAM = _CpuStream()


class _CpuDeviceMode(TorchFunctionMode):
    """Replaces the device "cuda" with the CPU when a tensor is created."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
        return func(*args, **kwargs)


#: torch defines `Tensor.cuda` in a base class of Tensor; the others are attributes of their owners.
_REPLACEMENTS: Sequence[tuple[Any, str, object]] = (
    (torch.cuda, "current_device", lambda: _CPU),
    (torch.cuda, "synchronize", lambda *_: None),
    (torch.cuda, "Stream", _CpuStream),
    (torch.cuda, "current_stream", lambda *_: _CPU_STREAM),
    (torch.cuda, "stream", lambda _: contextlib.nullcontext()),
    (torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
    (dist, "all_gather", _all_gather),
    (dist, "reduce_scatter", _reduce_scatter),
    (token_dispatcher, "maybe_move_tensor_to_cpu", _move_tensor_to_cpu),
)
