"""Access to this machine's jobs with the token that was printed with the dashboard's address."""

import getpass
import hmac
from collections.abc import Sequence
from pathlib import Path

from kubealign.client.backends.base import JobBackend
from kubealign.client.errors import Unauthenticated
from kubealign.client.records import ListQuery
from kubealign_dashboard.access import Caller

_PAGE_SIZE = 500


class LocalAccess:
    """Implements Access with a single token that does not expire and grants every right."""

    read_only = False
    accepts_token_in_url = True

    def __init__(self, runs_dir: Path, token: str) -> None:
        from kubealign.client.backends.local.backend import LocalBackend

        self._token = token.encode()
        self.reader: JobBackend = LocalBackend(runs_dir)

    async def authenticate(self, token: str, address: str = "") -> Caller:
        # Constant time, which does not reveal a correct prefix.
        if not hmac.compare_digest(token.encode(), self._token):
            raise Unauthenticated(
                "the token is not valid for this dashboard: open the address that it printed"
            )
        return Caller(_user_name(), token)

    async def authorize(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        """Grant every right."""

    def backend_for(self, caller: Caller) -> JobBackend:
        return self.reader

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        # One user sees every namespace: no right is checked.
        names = {self.reader.namespace}
        query = ListQuery(limit=_PAGE_SIZE, sort="name")
        while True:
            page = await self.reader.list(query)
            names |= {job.namespace for job in page.jobs}
            if not page.next:
                return sorted(names)
            query = ListQuery(limit=_PAGE_SIZE, sort="name", after=page.next)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # The user id has no name, as in many containers.
        return "owner"
