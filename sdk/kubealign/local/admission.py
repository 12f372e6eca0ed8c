"""Whether a job may run in its folder, before anything is started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.cluster_only import refuse_cluster_only
from kubealign.local.failure import RunRefused
from kubealign.local.run_folder import RunFolder
from kubealign.local.run_status import Phase, RunStatus, read_status
from kubealign.local.spec_change import changes, read_job
from kubealign.spec.dependencies import dependencies
from kubealign.spec.job import AlignmentJob


@dataclass(frozen=True)
class Admitted:
    """A job and where it runs. `before`: how an earlier run of it ended."""

    job: AlignmentJob
    folder: RunFolder
    before: RunStatus | None
    #: It has succeeded before, and nothing asks for more: there is nothing to do.
    finished: bool


def folder_of(runs_dir: Path, name: str) -> RunFolder:
    return RunFolder(runs_dir / name)


def has_succeeded(runs_dir: Path) -> Callable[[str], bool]:
    """Says of a job's name whether its result lies in this folder."""

    def succeeded(name: str) -> bool:
        status = read_status(folder_of(runs_dir, name).status)
        return status is not None and status.phase is Phase.SUCCEEDED

    return succeeded


def admit(job: AlignmentJob, folder: RunFolder) -> Admitted:
    """Raises RunRefused where the folder holds a run of another job of this name, and where the job asks for
    what only a cluster has."""
    refuse_cluster_only(job)
    held = read_job(folder.job)
    status = read_status(folder.status)
    if held is None or status is None:
        return Admitted(job, folder, None, finished=False)
    differing = changes(held, job)
    if differing:
        raise RunRefused(
            f"{folder.root} holds a run of another {job.name}; it differs in {'; '.join(differing)}. "
            "Give the job another name or --runs-dir, or delete that run and start again with --fresh"
        )
    more = job.spec.max_steps > held.spec.max_steps
    return Admitted(job, folder, status, finished=status.phase is Phase.SUCCEEDED and not more)


def results_of(job: AlignmentJob, runs_dir: Path) -> Mapping[str, Path]:
    """Name -> result folder of each job that this one depends on."""
    return {name: folder_of(runs_dir, name).result for name in dependencies(job)}
