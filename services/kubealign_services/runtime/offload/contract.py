"""Protocols for objects whose accelerator memory can be offloaded to the host."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Offloadable(Protocol):
    """An object with accelerator tensors that can be offloaded to host memory.

    On a CPU both methods do nothing. Called from one thread at a time, while no computation uses the
    object.
    """

    def offload(self) -> None:
        """Copy the tensors to the host and free the accelerator memory. Idempotent."""

    def reload(self) -> None:
        """Allocate the accelerator memory again and restore the tensors. Idempotent."""


class AcceleratorTenant(Protocol):
    """One of the users of a shared accelerator, offloaded and reloaded by `AcceleratorLock`.

    Called in the thread that acquires the lock, while no tenant computes.
    """

    def offload(self) -> None:
        """Free the accelerator memory."""

    def reload(self) -> None:
        """Restore the accelerator memory."""
