"""Who may see and do what: the seam between the API and where it runs."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from kubealign.client.records import JobRecord, JobRef
from kubealign.client.site import Site


@dataclass(frozen=True)
class Caller:
    """Whoever has sent a request. `expires`: seconds since the epoch, where the token says so."""

    name: str
    token: str = field(repr=False)
    groups: tuple[str, ...] = ()
    expires: float | None = None


@runtime_checkable
class TellsChanges(Protocol):
    """What a reader may do besides: where it does, nobody has to list jobs to see which have changed."""

    def changes(self) -> AsyncIterator[Sequence[JobRecord | JobRef]]:
        """Of all namespaces, from now on, some at a time: a job as it is after a change (also a new one), and
        the place of one that is gone. Raises Unavailable when it cannot go on: what changed since is lost."""


class Access(Protocol):
    """One implementation for this machine, one for a cluster."""

    #: No request may change anything.
    read_only: bool
    #: Reads for everybody, with the platform's own rights: ask `allow` first. It heeds
    #: `ListQuery.namespaces`, and may be a TellsChanges.
    reader: Site

    async def caller(self, token: str) -> Caller:
        """Whose token it is. Raises Unauthenticated, Unavailable."""

    async def allow(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        """Raises Forbidden unless the caller may do it, as Kubernetes' RBAC says: `verb` is get, list, watch,
        create, patch or delete, `resource` alignmentjobs, alignmentjobs/scale, pods, pods/log or events;
        `namespace` None: in every one."""

    def writer(self, caller: Caller) -> Site:
        """Does what the caller asks with the caller's own rights."""

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        """Those whose jobs the caller may list."""
