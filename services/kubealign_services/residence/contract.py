"""What gives an accelerator's memory back for a while."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Movable(Protocol):
    """Something with tensors on an accelerator that may rest in the host's memory. On a CPU both methods do
    nothing. One thread at a time calls it, and nothing computes with it meanwhile."""

    def offload(self) -> None:
        """Give the accelerator's memory back. Repeated, it does nothing."""

    def reload(self) -> None:
        """Take it again, with everything as it was. Repeated, it does nothing."""


class Tenant(Protocol):
    """One of those who share an accelerator, as a `Lease` moves them. Called by whoever takes the lease, in
    that one's thread, while nobody computes."""

    def leave(self) -> None:
        """Give the accelerator's memory back."""

    def enter(self) -> None:
        """Take it again."""
