"""Activations that the backward pass needs, in host memory between the passes.

torch's `save_on_cpu` (which `offload_wrapper` uses) moves every saved tensor in the computation's stream:
parameters, tensors of a few bytes, and an activation once for each operation that saves it. Here parameters
and small tensors stay, what several operations save moves once, and on a GPU the copies to the host run in a
stream of their own. Values, strides and so the gradients are those without offloading, bit for bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef

#: Storages below this size stay on the device: a copy takes longer than it saves.
MINIMUM_BYTES = 1 << 16


class ActivationOffload:
    """Offloads the activations that are saved on one device.

    The device may be a CPU; backends leave that to tests.
    """

    def __init__(self, device: torch.device, minimum_bytes: int = MINIMUM_BYTES) -> None:
        """Create the offloader.

        Args:
            minimum_bytes: Size of the smallest storage that is moved.
        """
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self._device = device
        self._minimum = minimum_bytes
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._copies: WeakValueDictionary[tuple[int, int], _HostCopy] = WeakValueDictionary()
        self._staying: set[int] = set()
        #: Bytes copied to the host so far.
        self.moved_bytes = 0

    @contextmanager
    def during_forward(self, model: nn.Module) -> Iterator[None]:
        """Offload what the forward pass within the block saves for its backward pass."""
        local = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
        self._staying = {each.untyped_storage().data_ptr() for each in local}
        with saved_tensors_hooks(self._pack, _unpack):
            yield

    def _pack(self, tensor: Tensor) -> "Tensor | _OffloadedTensor":
        """Return what autograd keeps in place of the tensor."""
        if tensor.device != self._device or type(tensor) is not Tensor or _is_view_of_parameter(tensor):
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < self._minimum or storage.data_ptr() in self._staying:
            return tensor
        # Other tensors of the storage, saved before it changed, share its copy. A copy keeps the storage's
        # identity reserved, so that no later storage is taken for it.
        key = (storage._cdata, tensor._version)
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = _HostCopy(storage, self._device, self._stream)
            self.moved_bytes += storage.nbytes()
        copy.users += 1
        return _OffloadedTensor(
            copy, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset())
        )


class _HostCopy:
    """A device storage's content in host memory.

    Attributes:
        users: Saved tensors in the storage that have not been restored.
    """

    def __init__(self, storage: UntypedStorage, device: torch.device, stream: Any) -> None:
        """Copy the storage, on a GPU in `stream` after the computation so far."""
        self.users = 0
        self._device = device
        self._stream = stream
        self._identity = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._restored: Tensor | None = None
        source = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
        self._bytes = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=stream is not None)
        if stream is None:
            self._bytes.copy_(source)
            return
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._bytes.copy_(source, non_blocking=True)
        # The allocator reuses the memory once the copy has been made.
        source.record_stream(stream)

    def restore(self) -> Tensor:
        """Return the bytes on the device, the same tensor until each user has it."""
        if self._restored is None:
            if self._stream is None:
                self._restored = self._bytes.clone()
            else:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)
                self._restored = self._bytes.to(self._device, non_blocking=True)
        restored = self._restored
        self.users -= 1
        if self.users <= 0:
            self._restored = None
        return restored


@dataclass(frozen=True)
class _OffloadedTensor:
    """A saved tensor as a view of a copied storage."""

    copy: _HostCopy
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def restore(self) -> Tensor:
        storage = self.copy.restore().untyped_storage()
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(
            storage, self.offset, self.size, self.stride
        )


def _unpack(saved: "Tensor | _OffloadedTensor") -> Tensor:
    return saved.restore() if isinstance(saved, _OffloadedTensor) else saved


def _is_view_of_parameter(tensor: Tensor) -> bool:
    """Return True for a weight that FSDP2 has gathered, as an operation sees it."""
    return isinstance(tensor._base, nn.Parameter)
