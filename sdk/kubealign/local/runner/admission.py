"""Admission of jobs to run directories, checked before anything is started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.runner.cluster_only import refuse_cluster_only
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.status import Phase, RunStatus, read_status
from kubealign.local.run_dir.spec_diff import forbidden_changes, read_job
from kubealign.spec.dependencies import dependency_names
from kubealign.spec.job import AlignmentJob


@dataclass(frozen=True)
class AdmittedJob:
    """An admitted job, its run directory and the status of an earlier run (None on the first)."""

    job: AlignmentJob
    folder: RunDirectory
    previous_status: RunStatus | None
    #: The job has already succeeded and maxSteps has not grown: nothing is left to do.
    is_finished: bool


def run_directory(runs_dir: Path, name: str) -> RunDirectory:
    """Return the run directory of the job with this name."""
    return RunDirectory(runs_dir / name)


def succeeded_in(runs_dir: Path) -> Callable[[str], bool]:
    """Return a predicate that tells by a job's name if its run in `runs_dir` has succeeded."""

    def succeeded(name: str) -> bool:
        status = read_status(run_directory(runs_dir, name).status)
        return status is not None and status.phase is Phase.SUCCEEDED

    return succeeded


def admit(job: AlignmentJob, folder: RunDirectory) -> AdmittedJob:
    """Admit the job to its run directory.

    Raises RunRefused where the directory holds a run of another job of this name, or the job asks for
    features that only a cluster has.
    """
    refuse_cluster_only(job)
    recorded_job = read_job(folder.job)
    status = read_status(folder.status)
    if recorded_job is None or status is None:
        return AdmittedJob(job, folder, None, is_finished=False)
    differences = forbidden_changes(recorded_job, job)
    if differences:
        raise RunRefused(
            f"{folder.root} holds a run of another {job.name}; it differs in {'; '.join(differences)}. "
            "Give the job another name or --runs-dir, or delete that run and start again with --fresh"
        )
    wants_more_steps = job.spec.max_steps > recorded_job.spec.max_steps
    return AdmittedJob(job, folder, status, is_finished=status.phase is Phase.SUCCEEDED and not wants_more_steps)


def result_folders(job: AlignmentJob, runs_dir: Path) -> Mapping[str, Path]:
    """Return the result folder of each job that this one depends on, by job name."""
    return {name: run_directory(runs_dir, name).result for name in dependency_names(job)}
