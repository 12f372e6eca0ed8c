"""Admission of jobs to run directories, checked before anything is started."""

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
    """An admitted job, its run directory and the status of an earlier run (None on the first)."""

    job: AlignmentJob
    folder: RunFolder
    before: RunStatus | None
    #: The job has already succeeded and maxSteps has not grown: nothing is left to do.
    finished: bool


def folder_of(runs_dir: Path, name: str) -> RunFolder:
    """Return the run directory of the job with this name."""
    return RunFolder(runs_dir / name)


def has_succeeded(runs_dir: Path) -> Callable[[str], bool]:
    """Return a predicate that tells by a job's name if its run in `runs_dir` has succeeded."""

    def succeeded(name: str) -> bool:
        status = read_status(folder_of(runs_dir, name).status)
        return status is not None and status.phase is Phase.SUCCEEDED

    return succeeded


def admit(job: AlignmentJob, folder: RunFolder) -> Admitted:
    """Admit the job to its run directory.

    Raises RunRefused where the directory holds a run of another job of this name, or the job asks for
    features that only a cluster has.
    """
    refuse_cluster_only(job)
    recorded_job = read_job(folder.job)
    status = read_status(folder.status)
    if recorded_job is None or status is None:
        return Admitted(job, folder, None, finished=False)
    differences = changes(recorded_job, job)
    if differences:
        raise RunRefused(
            f"{folder.root} holds a run of another {job.name}; it differs in {'; '.join(differences)}. "
            "Give the job another name or --runs-dir, or delete that run and start again with --fresh"
        )
    wants_more_steps = job.spec.max_steps > recorded_job.spec.max_steps
    return Admitted(job, folder, status, finished=status.phase is Phase.SUCCEEDED and not wants_more_steps)


def results_of(job: AlignmentJob, runs_dir: Path) -> Mapping[str, Path]:
    """Return the result folder of each job that this one depends on, by job name."""
    return {name: folder_of(runs_dir, name).result for name in dependencies(job)}
