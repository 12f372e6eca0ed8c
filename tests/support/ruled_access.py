"""An Access with rules set by a test, over any backend."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kubealign.client.backends.base import JobBackend
from kubealign.client.errors import Forbidden, Unauthenticated
from kubealign.client.records import ListQuery
from kubealign_dashboard.access import Caller


@dataclass(frozen=True)
class Person:
    """A user. `namespaces`: namespaces in which `verbs` are allowed; None: all."""

    name: str
    namespaces: frozenset[str] | None = None
    verbs: frozenset[str] = frozenset({"get", "list", "watch", "create", "patch", "delete"})
    #: Seconds since the epoch.
    expires: float | None = None


@dataclass
class RuledAccess:
    """Implements Access. `people`: token -> person; may change during a test."""

    reader: JobBackend
    people: dict[str, Person]
    read_only: bool = False
    accepts_token_in_url: bool = True
    #: Error with which every token is rejected, if set.
    away: Exception | None = None
    asked: list[tuple[str, str, str | None, str, str]] = field(default_factory=list)

    async def authenticate(self, token: str, address: str = "") -> Caller:
        if self.away is not None:
            raise self.away
        person = self.people.get(token)
        if person is None:
            raise Unauthenticated("the token is not known")
        if person.expires is not None and person.expires <= time.time():
            raise Unauthenticated("the token has expired: get a new one")
        return Caller(person.name, token, expires=person.expires)

    async def authorize(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        self.asked.append((caller.name, verb, namespace, name, resource))
        person = self.people[caller.token]
        everywhere = person.namespaces is None
        if verb not in person.verbs or not (everywhere or namespace in (person.namespaces or ())):
            where = f"in namespace {namespace}" if namespace else "in every namespace"
            raise Forbidden(f"{caller.name} may not {verb} {resource} {where}")

    def backend_for(self, caller: Caller) -> JobBackend:
        return self.reader

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        job_namespaces = {job.namespace for job in (await self.reader.list(ListQuery(limit=500))).jobs}
        allowed = self.people[caller.token].namespaces
        return sorted(job_namespaces if allowed is None else allowed)


def bearer(token: str) -> Mapping[str, str]:
    """Return the authorization header."""
    return {"Authorization": f"Bearer {token}"}
