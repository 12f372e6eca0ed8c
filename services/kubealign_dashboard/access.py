"""The interface between the API and its environment: authentication, authorization and access to jobs."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kubealign.client.backends.base import JobBackend
from kubealign.client.records import JobRecord, JobRef


@dataclass(frozen=True)
class Caller:
    """The authenticated sender of a request. `expires`: seconds since the epoch; None: no expiry."""

    name: str
    token: str = field(repr=False)
    groups: tuple[str, ...] = ()
    expires: float | None = None


@runtime_checkable
class ChangeSource(Protocol):
    """An optional capability of a reader: a stream of changes, so that nobody has to poll lists."""

    def changes(self) -> AsyncIterator[Sequence[JobRecord | JobRef]]:
        """Yield the changes of all namespaces from now on, in batches.

        Yields:
            A job after a change (also a new one), or the reference of a deleted job.

        Raises:
            Unavailable: The stream cannot continue; later changes are lost.
        """


class Access(Protocol):
    """Access to jobs. One implementation for a single machine, one for a cluster."""

    #: True: every change is refused.
    read_only: bool
    #: True: the page may be opened with `?token=`.
    accepts_token_in_url: bool
    #: Reads with the platform's own rights: call `authorize` first. It honours `ListQuery.namespaces` and may
    #: be a ChangeSource.
    reader: JobBackend

    async def authenticate(self, token: str, address: str = "") -> Caller:
        """Return the caller of a token.

        Args:
            address: IP address of the client; empty: unknown.

        Raises:
            Unauthenticated: The token is invalid.
            RequestRejected: The address sent too many invalid tokens.
            Unavailable: It cannot be verified.
        """

    async def authorize(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        """Verify that the caller has a right, as in Kubernetes' RBAC.

        Args:
            verb: get, list, watch, create, patch or delete.
            namespace: None: all namespaces.
            resource: alignmentjobs, alignmentjobs/scale, pods, pods/log or events.

        Raises:
            Forbidden: The caller does not have the right.
        """

    def backend_for(self, caller: Caller) -> JobBackend:
        """Return a backend that acts with the caller's own rights."""

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        """Return the namespaces whose jobs the caller may list."""
