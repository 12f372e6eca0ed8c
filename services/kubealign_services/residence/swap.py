"""Tensors of an accelerator that rest in pinned memory of the host.

A tensor keeps its identity: its storage on the accelerator is emptied and filled again, as FSDP2 does with
gathered weights. So what shares a storage (ties, views, the flat slices of a sharded model) stays shared, and
optimisers and engines that hold the tensors notice nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage

Tensors = Callable[[], Iterable[Tensor]]


class Swap:
    """Moves tensors of one device. tensors: those that there are now, asked for at each `offload`.

    The host's copies are kept: what has not changed since the last time (frozen weights never do) is not
    copied again, its memory is only given back. Not thread-safe.
    """

    def __init__(self, tensors: Tensors, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._tensors = tensors
        self._device = device
        self._storages: list[UntypedStorage] = []
        self._copies: list[Tensor] = []
        self._stale = True
        self._resting = False
        # Copies have a stream of their own: the host waits for them alone.
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def resting(self) -> bool:
        """Whether the device's memory has been given back."""
        return self._resting

    def changed(self) -> None:
        """The tensors hold something else now: the copies are of no use."""
        self._stale = True

    def offload(self) -> None:
        """Give the device's memory back."""
        if self._resting:
            return
        storages = _storages(self._tensors(), self._device)
        if self._stale or _places(storages) != _places(self._storages):
            self._storages = storages
            self._copies = [self._memory(index, storage.nbytes()) for index, storage in enumerate(storages)]
            self._copy(to_host=True)
            self._stale = False
        for storage in self._storages:
            storage.resize_(0)
        self._resting = True

    def reload(self) -> None:
        """Take the device's memory again, with what was in it."""
        if self._take():
            self._copy(to_host=False)

    def reload_empty(self) -> None:
        """Take the device's memory again with anything in it: all of the tensors are about to be filled."""
        if self._take():
            self._stale = True

    def _take(self) -> bool:
        if not self._resting:
            return False
        for storage, copy in zip(self._storages, self._copies, strict=True):
            storage.resize_(copy.numel())
        self._resting = False
        return True

    def _memory(self, index: int, size: int) -> Tensor:
        """The host's memory of the last time, where it fits: to pin memory takes longer than to copy."""
        if index < len(self._copies) and self._copies[index].numel() == size:
            return self._copies[index]
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._stream is not None)

    def _copy(self, *, to_host: bool) -> None:
        if self._stream is not None:
            # After whatever still computes with the tensors, or with the memory that was just taken.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for storage, copy in zip(self._storages, self._copies, strict=True):
                held = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
                source, target = (held, copy) if to_host else (copy, held)
                target.copy_(source, non_blocking=True)
        if self._stream is not None:
            # The memory is given back, or computed with, right after this.
            self._stream.synchronize()


class Stays:
    """What a CPU's tensors do: there is nowhere to go. In the place of a `Swap`."""

    def changed(self) -> None:
        return None

    def offload(self) -> None:
        return None

    def reload(self) -> None:
        return None

    def reload_empty(self) -> None:
        return None


def swapping(tensors: Tensors, device: torch.device) -> Swap | Stays:
    """How tensors of this device rest: in pinned memory of the host, or, of a CPU, where they are."""
    return Stays() if device.type == "cpu" else Swap(tensors, device)


def _storages(tensors: Iterable[Tensor], device: torch.device) -> list[UntypedStorage]:
    """Each storage on the device that holds something, once, in the order of the tensors; pages of a file are
    none to give back."""
    found = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    own = (storage for storage in found if storage.nbytes() and storage.resizable())
    return list({storage.data_ptr(): storage for storage in own}.values())


def _places(storages: Iterable[UntypedStorage]) -> list[int]:
    return [storage.data_ptr() for storage in storages]
