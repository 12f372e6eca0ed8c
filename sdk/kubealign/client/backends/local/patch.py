"""Plans the actions of a merge patch to a local job. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubealign.client.errors import Conflict
from kubealign.client.backends.local.spec_changes import parse_job, check_training_unchanged, check_identity_unchanged, changed_spec_fields
from kubealign.kube.merge_patch import apply_merge_patch
from kubealign.client.records import JobRecord
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

#: Phases in which no runner has read the job.
_IDLE_PHASES = (JobPhase.PENDING, JobPhase.SUSPENDED)


@dataclass(frozen=True)
class PatchPlan:
    """Actions of a patch. None means unchanged."""

    #: The full desired job.
    job: AlignmentJob
    replicas: int | None = None
    suspended: bool | None = None


def plan_patch(record: JobRecord, patch: Mapping[str, Any], folder: Path) -> PatchPlan:
    """Plan the actions of a patch. File paths in the patch are resolved against `folder`.

    Raises:
        JobInvalid: The patch changes an immutable field.
        Conflict: The change is not allowed now, or the patch is based on an older version.
    """
    before = {name: value for name, value in record.resource.items() if name != "status"}
    after = apply_merge_patch(before, {name: value for name, value in patch.items() if name != "status"})
    check_identity_unchanged(before, after)
    expected_version = (patch.get("metadata") or {}).get("resourceVersion")
    if expected_version is not None and expected_version != record.metadata.get("resourceVersion"):
        raise Conflict(f"{record.ref} has changed in the meantime: read it again, then change it")
    old, new = parse_job(before, None), parse_job(after, folder)
    check_training_unchanged(old, new)
    _check_phase_allows(record, old, new)
    replicas, suspended = new.spec.rollout.replicas, new.spec.suspend
    return PatchPlan(
        job=new,
        replicas=None if replicas == old.spec.rollout.replicas else replicas,
        suspended=None if suspended == old.spec.suspend else suspended,
    )


def _check_phase_allows(record: JobRecord, old: AlignmentJob, new: AlignmentJob) -> None:
    phase = record.phase
    if phase is not None and phase.is_final and old.spec != new.spec:
        raise Conflict(f"{record.ref} has finished ({phase}): its spec can no longer be changed")
    if phase in _IDLE_PHASES:
        return
    rollout = new.spec.rollout.model_copy(update={"replicas": old.spec.rollout.replicas})
    without_scaling = new.model_copy(update={"spec": new.spec.model_copy(update={"rollout": rollout})})
    changed_fields = changed_spec_fields(old, without_scaling)
    if changed_fields:
        raise Conflict(
            f"{record.ref} is {phase}, and reads {', '.join(changed_fields)} when it starts: suspend it first"
        )
