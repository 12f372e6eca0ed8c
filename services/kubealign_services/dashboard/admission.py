"""Authorization dependencies of the routes."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from kubealign.client.errors import Forbidden
from kubealign.client.records import JobRef
from kubealign.client.site import Site
from kubealign_services.dashboard.access import Access, Caller
from kubealign_services.dashboard.parameters import JobName, Namespace

_CHANGES = ("create", "patch", "delete")


@dataclass(frozen=True)
class Door:
    """The access and the caller of one request."""

    access: Access
    caller: Caller

    @property
    def reader(self) -> Site:
        return self.access.reader

    @property
    def own(self) -> Site:
        """A backend that acts with the caller's own rights."""
        return self.access.writer(self.caller)

    async def allow(
        self, verb: str, namespace: str | None, name: str = "", resource: str = "alignmentjobs"
    ) -> None:
        """Verify that the caller has a right.

        Raises:
            Forbidden: The caller does not have it, or the dashboard is read-only.
        """
        if verb in _CHANGES and self.access.read_only:
            raise Forbidden("this dashboard is read-only: use kubectl or the kubealign command")
        await self.access.allow(self.caller, verb, namespace, name, resource)


@dataclass(frozen=True)
class JobDoor(Door):
    """The context of a request about one job, which need not exist."""

    ref: JobRef


def door(request: Request) -> Door:
    """Return the context of an authenticated request."""
    return Door(request.app.state.access, request.state.caller)


AnyDoor = Annotated[Door, Depends(door)]


class InNamespace:
    """A dependency that authorizes a verb in the namespace of the path."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    async def __call__(self, door: AnyDoor, namespace: Namespace) -> Door:
        await door.allow(self._verb, namespace)
        return door


class OnJob:
    """A dependency that authorizes a verb on the job of the path."""

    def __init__(self, verb: str, resource: str = "alignmentjobs") -> None:
        self._verb = verb
        self._resource = resource

    async def __call__(self, door: AnyDoor, namespace: Namespace, name: JobName) -> JobDoor:
        # Pods and events do not carry the name of the job.
        named = name if self._resource.startswith("alignmentjobs") else ""
        await door.allow(self._verb, namespace, named, self._resource)
        return JobDoor(door.access, door.caller, JobRef(namespace, name))


SeeJob = Annotated[JobDoor, Depends(OnJob("get"))]
