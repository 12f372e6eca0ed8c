"""Which jobs a command is about: those of this machine, or those of a cluster.

The rule: --runs-dir FOLDER or --local means this machine; --kubeconfig or --context a cluster. Without any of
them KUBEALIGN_RUNS_DIR decides: where it is set, this machine with that folder, else the cluster.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kubealign.client.site import Site

RUNS_DIR = "KUBEALIGN_RUNS_DIR"
_RUNS = Path("runs")
_ELSEWHERE = "for jobs of this machine, add --local or --runs-dir FOLDER"


@dataclass(frozen=True)
class Where:
    """What the command line says of it."""

    local: bool = False
    runs_dir: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    dashboard: str | None = None

    @property
    def folder(self) -> Path | None:
        """With the runs of this machine; None: a cluster is meant. Raises typer.BadParameter for both."""
        here = self.local or self.runs_dir is not None
        there = self.kubeconfig is not None or self.context is not None
        if here and there:
            raise typer.BadParameter(
                "--local and --runs-dir mean this machine, --kubeconfig and --context a cluster: drop one"
            )
        if here:
            return self.runs_dir or Path(os.environ.get(RUNS_DIR) or _RUNS)
        held = os.environ.get(RUNS_DIR)
        return Path(held) if held and not there else None


@asynccontextmanager
async def site_of(where: Where) -> AsyncIterator["Site"]:
    """Raises KubealignError where there is none."""
    from kubealign.client.errors import Unavailable

    folder = where.folder
    if folder is not None:
        from kubealign.client.local_site import LocalSite

        here = LocalSite(folder.absolute())
        try:
            yield here
        finally:
            await here.close()
        return
    from kubealign.client.cluster_opening import open_cluster

    try:
        there = await open_cluster(where.kubeconfig, where.context, where.namespace, where.dashboard)
    except Unavailable as error:
        raise Unavailable(f"{error}; {_ELSEWHERE}") from error
    try:
        yield there
    finally:
        await there.close()
