"""Target of a command: the jobs of this machine, or those of a cluster.

The rule: --runs-dir FOLDER or --local selects this machine; --kubeconfig or --context selects a cluster.
Without any of them, KUBEALIGN_RUNS_DIR decides: if it is set, this machine with that folder, else the
cluster.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kubealign.client.backends.base import JobBackend

RUNS_DIR_VARIABLE = "KUBEALIGN_RUNS_DIR"
_DEFAULT_RUNS_DIR = Path("runs")
_LOCAL_HINT = "for jobs of this machine, add --local or --runs-dir FOLDER"


@dataclass(frozen=True)
class CommandTarget:
    """Target options of the command line."""

    local: bool = False
    runs_dir: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None
    dashboard: str | None = None

    @property
    def runs_folder(self) -> Path | None:
        """Folder with the runs of this machine; None for a cluster.

        Raises typer.BadParameter if both are selected.
        """
        is_local = self.local or self.runs_dir is not None
        is_cluster = self.kubeconfig is not None or self.context is not None
        if is_local and is_cluster:
            raise typer.BadParameter(
                "--local and --runs-dir select this machine, --kubeconfig and --context a cluster: remove one"
            )
        if is_local:
            return self.runs_dir or Path(os.environ.get(RUNS_DIR_VARIABLE) or _DEFAULT_RUNS_DIR)
        configured = os.environ.get(RUNS_DIR_VARIABLE)
        return Path(configured) if configured and not is_cluster else None


@asynccontextmanager
async def open_backend(target: CommandTarget) -> AsyncIterator["JobBackend"]:
    """Open the backend of a target. Raises KubealignError if it is unavailable."""
    from kubealign.client.errors import Unavailable

    folder = target.runs_folder
    if folder is not None:
        from kubealign.client.backends.local.backend import LocalBackend

        local_backend = LocalBackend(folder.absolute())
        try:
            yield local_backend
        finally:
            await local_backend.close()
        return
    from kubealign.client.backends.cluster.backend import open_cluster

    try:
        cluster_backend = await open_cluster(
            target.kubeconfig, target.context, target.namespace, target.dashboard
        )
    except Unavailable as error:
        raise Unavailable(f"{error}; {_LOCAL_HINT}") from error
    try:
        yield cluster_backend
    finally:
        await cluster_backend.close()
