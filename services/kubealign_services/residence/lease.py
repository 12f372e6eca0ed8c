"""Who has the accelerator: one holds it at a time, in the order of asking, and the one whose tensors are on
it makes room for the next.

To hold the lease and to live on the accelerator are two things: a tenant that lets go of the lease stays
until another one comes, so that two steps of the same one move nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from kubealign_services.residence.contract import Tenant


class LeaseTimeout(RuntimeError):
    """The accelerator did not become free in time. Says who held it, and for what."""


@dataclass(frozen=True)
class _Holding:
    tenant: str
    purpose: str
    since: float

    def told(self, now: float) -> str:
        return f"{self.tenant} has held it for {now - self.since:.1f} s, for {self.purpose}"


class Lease:
    """Of one accelerator. tenants: by name. timeout: seconds that one waits for it. Thread-safe; not to be
    taken twice by one who holds it."""

    def __init__(
        self, tenants: Mapping[str, Tenant], timeout: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenants = dict(tenants)
        self._timeout = timeout
        self._clock = clock
        self._free = threading.Condition()
        self._waiting: deque[object] = deque()
        self._holding: _Holding | None = None
        self._resident: str | None = None
        # False where its entry failed, or its leave: what it has on the accelerator is not known.
        self._settled = False

    @property
    def resident(self) -> str | None:
        """Whose tensors are on the accelerator; None: nobody's yet."""
        return self._resident

    @property
    def holder(self) -> str | None:
        """Who computes; None: nobody."""
        holding = self._holding
        return None if holding is None else holding.tenant

    @property
    def queued(self) -> int:
        """How many wait for it."""
        return len(self._waiting)

    @contextmanager
    def held(self, tenant: str, purpose: str) -> Iterator[None]:
        """Hold it within the block. Raises what `take` does."""
        self.take(tenant, purpose)
        try:
            yield
        finally:
            self.release(tenant)

    def take(self, tenant: str, purpose: str) -> None:
        """Wait for it, and hold it until `release`; whoever lives on the accelerator leaves first.

        purpose: what for, as the error of the next one says it. Raises LeaseTimeout; KeyError for a name that
        is no tenant's; what a tenant's `leave` or `enter` raises: then it is not held.
        """
        entering = self._tenants[tenant]
        self._wait(tenant, purpose)
        try:
            self._move_in(tenant, entering)
        except BaseException:
            self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Let the next one have it. Raises RuntimeError where the tenant does not hold it."""
        with self._free:
            if self._holding is None or self._holding.tenant != tenant:
                raise RuntimeError(f"{tenant} lets go of an accelerator that {self.holder or 'nobody'} holds")
            self._holding = None
            self._free.notify_all()

    def _wait(self, tenant: str, purpose: str) -> None:
        ticket = object()
        deadline = self._clock() + self._timeout
        with self._free:
            self._waiting.append(ticket)
            try:
                while self._holding is not None or self._waiting[0] is not ticket:
                    left = deadline - self._clock()
                    if left <= 0:
                        held = self._holding
                        who = "others wait before it" if held is None else held.told(self._clock())
                        raise LeaseTimeout(
                            f"{tenant} waited {self._timeout:g} s for the accelerator, for {purpose}: {who}"
                        )
                    self._free.wait(left)
                self._holding = _Holding(tenant, purpose, self._clock())
            finally:
                self._waiting.remove(ticket)
                self._free.notify_all()

    def _move_in(self, tenant: str, entering: Tenant) -> None:
        if self._resident == tenant and self._settled:
            return
        if self._resident is not None and self._resident != tenant:
            self._settled = False
            self._tenants[self._resident].leave()
        self._resident, self._settled = tenant, False
        entering.enter()
        self._settled = True
