"""Generations of a job's document: which one is current, and when the next one replaces it.

A generation is one immutable ConfigMap, from which all processes read the job. The next one is recorded in
the status before its ConfigMap is created. Pods of two generations never run at the same time. Earlier
ConfigMaps are owned by the job and deleted with it: the operator has no right to delete one.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from kubealign.spec.job import AlignmentJob, AlignmentJobSpec
from kubealign.spec.mutable_fields import MUTABLE_DOCUMENT_FIELDS
from kubealign.spec.status import DocumentStatus
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.planner.plan import KubeEventType, PlannedEvent
from kubealign_operator.planner.snapshot import JobSnapshot

REPLACED = "DocumentReplaced"


@dataclass(frozen=True)
class DocumentDecision:
    """The current document of a job.

    Args:
        change: Why it replaces an earlier generation from now on; empty: it is not new.
        config_map: Name of the ConfigMap.
    """

    status: DocumentStatus
    config_map: str
    change: str = ""

    @property
    def events(self) -> tuple[PlannedEvent, ...]:
        """The event that reports a replacement."""
        if not self.change:
            return ()
        message = f"the processes read the job from the ConfigMap {self.config_map}: {self.change}"
        return (PlannedEvent(KubeEventType.NORMAL, REPLACED, message),)


def current_document(snapshot: JobSnapshot, job: AlignmentJob) -> DocumentDecision:
    """Decide on the document of an active job, which is replaced once a field that the processes read has
    changed.
    """
    digest = document_digest(job.spec)
    recorded = snapshot.previous_status.document
    newest = max(map(pod_state.document_generation_of, snapshot.pods), default=1)
    if recorded is None:
        return _first_sight(snapshot, newest, digest)
    generation = max(recorded.generation, newest)
    if digest == recorded.digest:
        return _decision(snapshot, generation, digest)
    if snapshot.remaining_pods and not _is_comparable(recorded.digest, digest):
        # Another release has recorded other fields: no reason to restart what runs.
        return _decision(snapshot, generation, digest)
    return _decision(snapshot, generation + 1, digest, "fields have changed while the job was suspended")


def document_digest(spec: AlignmentJobSpec) -> str:
    """Return the digest of the names, and of the values, of the fields that may change.

    The default of a field that is added to a section changes nothing.
    """
    values = {path: _value_at(spec, path) for path in MUTABLE_DOCUMENT_FIELDS}
    return f"{_hash(sorted(values))[:8]}-{_hash(values)[:16]}"


def _first_sight(snapshot: JobSnapshot, newest: int, digest: str) -> DocumentDecision:
    """Decide on the document of a job without a record: a new one, or one of an earlier release."""
    is_unused = not snapshot.remaining_pods
    if is_unused and ("ConfigMap", names.config_map(snapshot.name)) in snapshot.observed.objects:
        # The job may have changed since, as it is suspended.
        return _decision(snapshot, newest + 1, digest, "the values in the earlier one are not known")
    return _decision(snapshot, newest, digest)


def _decision(snapshot: JobSnapshot, generation: int, digest: str, change: str = "") -> DocumentDecision:
    status = DocumentStatus(generation=generation, digest=digest)
    return DocumentDecision(status, names.config_map(snapshot.name, generation), change)


def _is_comparable(one: str, other: str) -> bool:
    return one.partition("-")[0] == other.partition("-")[0]


def _value_at(spec: AlignmentJobSpec, path: str) -> Any:
    """Return the value of a field as JSON; None: its section does not exist."""
    value: Any = spec
    for name in path.split(".")[1:]:
        value = None if value is None else getattr(value, to_snake(name))
    return value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
