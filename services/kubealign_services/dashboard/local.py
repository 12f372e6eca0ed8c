"""This machine's jobs, for its owner: whoever has the token that the address was printed with."""

import getpass
import hmac
from collections.abc import Sequence
from pathlib import Path

from kubealign.client.errors import Unauthenticated
from kubealign.client.records import ListQuery
from kubealign.client.site import Site
from kubealign_services.dashboard.access import Caller

_PAGE = 500


class LocalAccess:
    """Implements Access: one token, which does not expire and may do everything."""

    read_only = False

    def __init__(self, runs_dir: Path, token: str) -> None:
        from kubealign.client.local_site import LocalSite

        self._token = token.encode()
        self.reader: Site = LocalSite(runs_dir)

    async def caller(self, token: str) -> Caller:
        # In a time that does not tell how much of it is right.
        if not hmac.compare_digest(token.encode(), self._token):
            raise Unauthenticated("the token is not that of this dashboard: open the address that it printed")
        return Caller(_owner(), token)

    async def allow(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        """Everything."""

    def writer(self, caller: Caller) -> Site:
        return self.reader

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        found = {self.reader.namespace}
        query = ListQuery(limit=_PAGE, sort="name")
        while True:
            page = await self.reader.list(query)
            found |= {job.namespace for job in page.jobs}
            if not page.next:
                return sorted(found)
            query = ListQuery(limit=_PAGE, sort="name", after=page.next)


def _owner() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A user id without a name, as in many containers.
        return "owner"
