"""Offloads accelerator tensors to pinned host memory.

A tensor keeps its identity: its accelerator storage is resized to zero and filled again later, as FSDP2
does with gathered weights. Tensors that share a storage (ties, views, the flat slices of a sharded model)
stay shared, and optimisers and engines that hold the tensors need no change.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage

TensorProvider = Callable[[], Iterable[Tensor]]


class HostOffloader:
    """Offloads and reloads the tensors of one device. Not thread-safe.

    The host copies are kept: tensors that have not changed since the last offload (frozen weights never
    do) are not copied again; only their device memory is freed.

    Args:
        tensors: Called at each `offload` for the present tensors.
    """

    def __init__(self, tensors: TensorProvider, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._tensors = tensors
        self._device = device
        self._storages: list[UntypedStorage] = []
        self._copies: list[Tensor] = []
        self._stale = True
        self._is_offloaded = False
        # A separate stream, so that the host waits only for the copies.
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @property
    def is_offloaded(self) -> bool:
        """True after the device memory was freed."""
        return self._is_offloaded

    def mark_changed(self) -> None:
        """Invalidate the host copies because the tensors hold new values."""
        self._stale = True

    def offload(self) -> None:
        """Copy the tensors to the host and free the device memory."""
        if self._is_offloaded:
            return
        storages = _own_storages(self._tensors(), self._device)
        if self._stale or _addresses(storages) != _addresses(self._storages):
            self._storages = storages
            self._copies = [
                self._host_buffer(index, storage.nbytes()) for index, storage in enumerate(storages)
            ]
            self._copy(to_host=True)
            self._stale = False
        for storage in self._storages:
            storage.resize_(0)
        self._is_offloaded = True

    def reload(self) -> None:
        """Allocate the device memory and restore the tensors."""
        if self._reallocate():
            self._copy(to_host=False)

    def reload_empty(self) -> None:
        """Allocate the device memory without restoring the tensors, because all of them are about to be
        overwritten.
        """
        if self._reallocate():
            self._stale = True

    def _reallocate(self) -> bool:
        if not self._is_offloaded:
            return False
        for storage, copy in zip(self._storages, self._copies, strict=True):
            storage.resize_(copy.numel())
        self._is_offloaded = False
        return True

    def _host_buffer(self, index: int, size: int) -> Tensor:
        """Return the host buffer of the last offload when its size matches: pinning memory takes longer than
        copying.
        """
        if index < len(self._copies) and self._copies[index].numel() == size:
            return self._copies[index]
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._stream is not None)

    def _copy(self, *, to_host: bool) -> None:
        if self._stream is not None:
            # Wait for computations that still use the tensors or the memory that was just allocated.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for storage, copy in zip(self._storages, self._copies, strict=True):
                on_device = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
                source, target = (on_device, copy) if to_host else (copy, on_device)
                target.copy_(source, non_blocking=True)
        if self._stream is not None:
            # The memory is freed, or used by computations, right after this.
            self._stream.synchronize()


class NoOffload:
    """Offloading for CPU tensors: does nothing. Has the interface of `HostOffloader`."""

    def mark_changed(self) -> None:
        return None

    def offload(self) -> None:
        return None

    def reload(self) -> None:
        return None

    def reload_empty(self) -> None:
        return None


def make_offloader(tensors: TensorProvider, device: torch.device) -> HostOffloader | NoOffload:
    """Return the offloader for tensors of this device: to pinned host memory, or none on a CPU."""
    return NoOffload() if device.type == "cpu" else HostOffloader(tensors, device)


def _own_storages(tensors: Iterable[Tensor], device: torch.device) -> list[UntypedStorage]:
    """Return each non-empty storage on the device once, in the order of the tensors.

    Storages that are mapped files are skipped: there is no memory to free.
    """
    on_device = (tensor.untyped_storage() for tensor in tensors if tensor.device == device)
    own = (storage for storage in on_device if storage.nbytes() and storage.resizable())
    return list({storage.data_ptr(): storage for storage in own}.values())


def _addresses(storages: Iterable[UntypedStorage]) -> list[int]:
    return [storage.data_ptr() for storage in storages]
