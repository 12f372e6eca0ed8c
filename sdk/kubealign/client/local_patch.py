"""What a merge patch asks of a local run. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.client.errors import Conflict
from kubealign.client.local_changes import job_of, refuse_other_job, refuse_other_place, run_fields
from kubealign.client.merge_patch import merged
from kubealign.client.records import JobRecord
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

#: Without a runner that has read the job.
_RESTING = (JobPhase.PENDING, JobPhase.SUSPENDED)


@dataclass(frozen=True)
class Plan:
    """What is to be done. None: it stays as it is."""

    #: The whole job as it is to be.
    job: AlignmentJob
    replicas: int | None = None
    suspended: bool | None = None


def plan(record: JobRecord, patch: Mapping[str, Any], folder: Path) -> Plan:
    """Raises JobInvalid for what may never be changed, Conflict for what may not be changed now, or was asked
    of an older version. File paths in the patch are made absolute from `folder`."""
    before = {name: value for name, value in record.resource.items() if name != "status"}
    after = merged(before, {name: value for name, value in patch.items() if name != "status"})
    refuse_other_place(before, after)
    wanted = (patch.get("metadata") or {}).get("resourceVersion")
    if wanted is not None and wanted != record.metadata.get("resourceVersion"):
        raise Conflict(f"{record.ref} has changed meanwhile: read it again, then change it")
    old, new = job_of(before, None), job_of(after, folder)
    refuse_other_job(old, new)
    _refuse_now(record, old, new)
    replicas, suspended = new.spec.rollout.replicas, new.spec.suspend
    return Plan(
        job=new,
        replicas=None if replicas == old.spec.rollout.replicas else replicas,
        suspended=None if suspended == old.spec.suspend else suspended,
    )


def _refuse_now(record: JobRecord, old: AlignmentJob, new: AlignmentJob) -> None:
    phase = record.phase
    if phase is not None and phase.final and old.spec != new.spec:
        raise Conflict(f"{record.ref} is over ({phase}): nothing of its spec can be changed any more")
    if phase in _RESTING:
        return
    rollout = new.spec.rollout.model_copy(update={"replicas": old.spec.rollout.replicas})
    otherwise = new.model_copy(update={"spec": new.spec.model_copy(update={"rollout": rollout})})
    read_once = run_fields(old, otherwise)
    if read_once:
        raise Conflict(
            f"{record.ref} is {phase}, and reads {', '.join(read_once)} when it starts: suspend it first"
        )
