"""May they? What every route asks before it does anything."""

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
    """One request's way to the jobs."""

    access: Access
    caller: Caller

    @property
    def reader(self) -> Site:
        return self.access.reader

    @property
    def own(self) -> Site:
        """With the caller's own rights."""
        return self.access.writer(self.caller)

    async def allow(
        self, verb: str, namespace: str | None, name: str = "", resource: str = "alignmentjobs"
    ) -> None:
        """Raises Forbidden."""
        if verb in _CHANGES and self.access.read_only:
            raise Forbidden("this dashboard is read-only: use kubectl or the kubealign command")
        await self.access.allow(self.caller, verb, namespace, name, resource)


@dataclass(frozen=True)
class JobDoor(Door):
    """To one job, which may not be there."""

    ref: JobRef


def door(request: Request) -> Door:
    """Of whoever has been authenticated."""
    return Door(request.app.state.access, request.state.caller)


AnyDoor = Annotated[Door, Depends(door)]


class InNamespace:
    """A dependency: the caller may do this in the namespace of the address."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    async def __call__(self, door: AnyDoor, namespace: Namespace) -> Door:
        await door.allow(self._verb, namespace)
        return door


class OnJob:
    """A dependency: the caller may do this with the job of the address."""

    def __init__(self, verb: str, resource: str = "alignmentjobs") -> None:
        self._verb = verb
        self._resource = resource

    async def __call__(self, door: AnyDoor, namespace: Namespace, name: JobName) -> JobDoor:
        # Pods and events have names of their own.
        named = name if self._resource.startswith("alignmentjobs") else ""
        await door.allow(self._verb, namespace, named, self._resource)
        return JobDoor(door.access, door.caller, JobRef(namespace, name))


SeeJob = Annotated[JobDoor, Depends(OnJob("get"))]
