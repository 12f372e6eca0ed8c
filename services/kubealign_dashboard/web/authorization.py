"""Authorization dependencies of the routes."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from kubealign.client.backends.base import JobBackend
from kubealign.client.errors import Forbidden
from kubealign.client.records import JobRef
from kubealign_dashboard.access import Access, Caller
from kubealign_dashboard.web.parameters import JobName, Namespace

_WRITE_VERBS = ("create", "patch", "delete")


@dataclass(frozen=True)
class RequestContext:
    """The access and the caller of one request."""

    access: Access
    caller: Caller

    @property
    def reader(self) -> JobBackend:
        return self.access.reader

    @property
    def caller_backend(self) -> JobBackend:
        """A backend that acts with the caller's own rights."""
        return self.access.backend_for(self.caller)

    async def authorize(
        self, verb: str, namespace: str | None, name: str = "", resource: str = "alignmentjobs"
    ) -> None:
        """Verify that the caller has a right.

        Raises:
            Forbidden: The caller does not have it, or the dashboard is read-only.
        """
        if verb in _WRITE_VERBS and self.access.read_only:
            raise Forbidden("this dashboard is read-only: use kubectl or the kubealign command")
        await self.access.authorize(self.caller, verb, namespace, name, resource)


@dataclass(frozen=True)
class JobRequestContext(RequestContext):
    """The context of a request about one job, which need not exist."""

    ref: JobRef


def request_context(request: Request) -> RequestContext:
    """Return the context of an authenticated request."""
    return RequestContext(request.app.state.access, request.state.caller)


AnyRequestContext = Annotated[RequestContext, Depends(request_context)]


class AuthorizeNamespace:
    """A dependency that authorizes a verb in the namespace of the path."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    async def __call__(self, context: AnyRequestContext, namespace: Namespace) -> RequestContext:
        await context.authorize(self._verb, namespace)
        return context


class AuthorizeJob:
    """A dependency that authorizes a verb on the job of the path."""

    def __init__(self, verb: str, resource: str = "alignmentjobs") -> None:
        self._verb = verb
        self._resource = resource

    async def __call__(
        self, context: AnyRequestContext, namespace: Namespace, name: JobName
    ) -> JobRequestContext:
        # Pods and events do not carry the name of the job.
        named = name if self._resource.startswith("alignmentjobs") else ""
        await context.authorize(self._verb, namespace, named, self._resource)
        return JobRequestContext(context.access, context.caller, JobRef(namespace, name))


ReadableJob = Annotated[JobRequestContext, Depends(AuthorizeJob("get"))]
