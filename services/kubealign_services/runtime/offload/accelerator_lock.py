"""A fair lock for one accelerator that is shared by several tenants: one tenant computes at a time, in the
order of the requests, and the previous tenant's tensors are offloaded before the next tenant's are loaded.

Holding the lock and being resident on the accelerator are separate: a tenant that releases the lock stays
resident until another tenant acquires it, so consecutive steps of the same tenant move no memory.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from kubealign_services.runtime.offload.contract import AcceleratorTenant


class AcceleratorLockTimeout(RuntimeError):
    """The accelerator did not become free in time. Names the holder and its purpose."""


@dataclass(frozen=True)
class _Holder:
    tenant: str
    purpose: str
    since: float

    def describe(self, now: float) -> str:
        """Return a description of the holder for error messages."""
        return f"{self.tenant} has held it for {now - self.since:.1f} s, for {self.purpose}"


class AcceleratorLock:
    """Lock of one accelerator. Thread-safe, not reentrant.

    Args:
        tenants: Tenants by name.
        timeout: Seconds to wait for the lock.
    """

    def __init__(
        self,
        tenants: Mapping[str, AcceleratorTenant],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tenants = dict(tenants)
        self._timeout = timeout
        self._clock = clock
        self._condition = threading.Condition()
        self._waiting: deque[object] = deque()
        self._current_holder: _Holder | None = None
        self._resident: str | None = None
        # False after a failed offload or reload: the contents of the accelerator memory are then unknown.
        self._is_resident_loaded = False

    @property
    def resident(self) -> str | None:
        """Name of the tenant whose tensors are on the accelerator; None before the first acquisition."""
        return self._resident

    @property
    def holder(self) -> str | None:
        """Name of the tenant that holds the lock; None when it is free."""
        holding = self._current_holder
        return None if holding is None else holding.tenant

    @property
    def queue_length(self) -> int:
        """Number of threads that wait for the lock."""
        return len(self._waiting)

    @contextmanager
    def hold(self, tenant: str, purpose: str) -> Iterator[None]:
        """Hold the lock within the block. Raises the exceptions of `acquire`."""
        self.acquire(tenant, purpose)
        try:
            yield
        finally:
            self.release(tenant)

    def acquire(self, tenant: str, purpose: str) -> None:
        """Wait for the lock and hold it until `release`. The resident tenant is offloaded first.

        Args:
            purpose: Shown in the timeout error of other tenants.

        Raises:
            AcceleratorLockTimeout: The lock did not become free in time.
            KeyError: `tenant` is not the name of a tenant.
            Exception: Any error of a tenant's `offload` or `reload`; the lock is then not held.
        """
        entering = self._tenants[tenant]
        self._wait_for_turn(tenant, purpose)
        try:
            self._make_resident(tenant, entering)
        except BaseException:
            self.release(tenant)
            raise

    def release(self, tenant: str) -> None:
        """Release the lock. Raises RuntimeError when the tenant does not hold it."""
        with self._condition:
            if self._current_holder is None or self._current_holder.tenant != tenant:
                raise RuntimeError(f"{tenant} released an accelerator held by {self.holder or 'no tenant'}")
            self._current_holder = None
            self._condition.notify_all()

    def _wait_for_turn(self, tenant: str, purpose: str) -> None:
        ticket = object()
        deadline = self._clock() + self._timeout
        with self._condition:
            self._waiting.append(ticket)
            try:
                while self._current_holder is not None or self._waiting[0] is not ticket:
                    left = deadline - self._clock()
                    if left <= 0:
                        holding = self._current_holder
                        cause = "other tenants are queued before it"
                        if holding is not None:
                            cause = holding.describe(self._clock())
                        raise AcceleratorLockTimeout(
                            f"{tenant} waited {self._timeout:g} s for the accelerator, for {purpose}: {cause}"
                        )
                    self._condition.wait(left)
                self._current_holder = _Holder(tenant, purpose, self._clock())
            finally:
                self._waiting.remove(ticket)
                self._condition.notify_all()

    def _make_resident(self, tenant: str, entering: AcceleratorTenant) -> None:
        if self._resident == tenant and self._is_resident_loaded:
            return
        if self._resident is not None and self._resident != tenant:
            self._is_resident_loaded = False
            self._tenants[self._resident].offload()
        self._resident, self._is_resident_loaded = tenant, False
        entering.reload()
        self._is_resident_loaded = True
