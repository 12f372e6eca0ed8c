"""Submission of a job to this machine: validates it, writes its run directory and starts its runner."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubealign.client.backends.local.index import StoredRun
from kubealign.client.backends.local.patch import parse_job
from kubealign.client.backends.local.resource import to_resource
from kubealign.client.errors import Conflict, JobExists, JobInvalid, NotPossible
from kubealign.client.records import JobRecord
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.events import EventLog
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.phase import RunFacts, RunPhase
from kubealign.local.run_dir.spec_diff import job_document
from kubealign.local.runner.admission import parent_step_problem, refuse_cluster_only, run_directory
from kubealign.local.runner.launch import launch_with_reserved_lock
from kubealign.local.runner.run_jobs import check_server_programs
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase


def validate_submission(document: Mapping[str, Any], folder: Path) -> AlignmentJob:
    """Return the job of a document, after checking that it can run on this machine.

    File paths in it are resolved against `folder`. Raises JobInvalid, NotPossible.
    """
    job = parse_job(document, folder)
    try:
        # A suspended job is checked like one that runs.
        refuse_cluster_only(_with_suspend(job, False))
    except RunRefused as refusal:
        raise JobInvalid(str(refusal)) from None
    try:
        check_server_programs()
    except RunRefused as refusal:
        raise NotPossible(str(refusal)) from None
    return job


def submit(job: AlignmentJob, runs_dir: Path, *, dry_run: bool) -> JobRecord | None:
    """Write the job into its run directory and start its runner.

    Args:
        dry_run: Do neither; return the record that the job would have.

    Raises:
        JobInvalid: The run from whose checkpoint the job starts has none of the step.
        JobExists: The run directory already holds a job.
        Conflict: The directory is in use otherwise.
    """
    problem = parent_step_problem(job, runs_dir)
    if problem is not None:
        raise JobInvalid(problem)
    folder = run_directory(runs_dir, job.name)
    if folder.job.exists():
        raise JobExists(f"there is a job {job.name} in {runs_dir} already: delete it, or choose another name")
    if folder.root.exists() and any(folder.root.iterdir()):
        raise Conflict(f"{folder.root} exists and is not a run directory: choose another name")
    if dry_run:
        return JobRecord(to_resource(_dry_run_entry(job, folder), job_document(job)))
    lock = folder.lock()
    try:
        lock.reserve()
    except RunRefused as refusal:
        raise Conflict(str(refusal)) from None
    try:
        if folder.job.exists():
            raise JobExists(f"there is a job {job.name} in {runs_dir} already: it has just been submitted")
        folder.create()
        if job.spec.suspend:
            folder.mark_suspended(0)
        folder.write_job(_with_suspend(job, False).model_dump_json(by_alias=True, indent=2))
        EventLog(folder.events).append(
            "Submitted", "suspended until it is resumed" if job.spec.suspend else "to run"
        )
        if not job.spec.suspend:
            launch_with_reserved_lock(runs_dir, job.name, lock)
    finally:
        # Has no effect if the runner has taken the lock over.
        lock.release()
    return None


def _with_suspend(job: AlignmentJob, suspended: bool) -> AlignmentJob:
    return job.model_copy(update={"spec": job.spec.model_copy(update={"suspend": suspended})})


def _dry_run_entry(job: AlignmentJob, folder: RunDirectory) -> StoredRun:
    return StoredRun(
        folder=folder,
        name=job.name,
        namespace=job.metadata.namespace,
        uid="",
        created=time.time(),
        generation=1,
        labels=job.metadata.labels,
        algorithm=job.spec.algorithm.member,
        facts=RunFacts(stop_requested_pid=0 if job.spec.suspend else None),
        run_phase=RunPhase(JobPhase.SUSPENDED if job.spec.suspend else JobPhase.PENDING),
        modified_ns=0,
        is_settled=True,
    )
