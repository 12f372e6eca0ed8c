"""Builds the Kubernetes-style resource of a local run. Pure."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pydantic import ValidationError

from kubealign.client.backends.local.index import StoredRun
from kubealign.client.backends.local.role_names import is_primary, process_group, process_role
from kubealign.client.records import ProcessState
from kubealign.local.run_dir.phase import RunPhase
from kubealign.local.run_dir.status import RunStatus
from kubealign.process_settings import Role
from kubealign.role_specs import ROLE_SPECS
from kubealign.spec.algorithms import Algorithm
from kubealign.spec.job import API_VERSION, KIND
from kubealign.spec.sections.rollout import RolloutPlacement
from kubealign.spec.status import (
    AlignmentJobStatus,
    Condition,
    ConditionStatus,
    JobPhase,
    ResultLocation,
    RoleStatus,
)

_READY_STATES = (ProcessState.READY, ProcessState.FINISHED)


#: {name, state, restarts, pid, ...} of each process; None: no runner responds.
RunnerProcesses: TypeAlias = Sequence[Mapping[str, Any]] | None


def refine_phase(stored: StoredRun, processes: RunnerProcesses) -> StoredRun:
    """Refine the Running phase of a run: Starting, and the processes it waits for, until the first step."""
    status = stored.facts.status
    if stored.run_phase.phase is not JobPhase.RUNNING or status is None:
        return stored
    has_stepped = stored.last_step is not None and stored.last_step.time >= status.started_at
    states = {str(process["name"]): process["state"] for process in processes or ()}
    if has_stepped or states.get("driver") in _READY_STATES:
        return stored
    pending = sorted(
        name for name, state in states.items() if state not in _READY_STATES and name != "driver"
    )
    message = f"waits for {', '.join(pending)}" if pending else "its runner is starting"
    return replace(stored, run_phase=RunPhase(JobPhase.STARTING, message))


def to_resource(
    stored: StoredRun,
    document: Mapping[str, Any],
    processes: RunnerProcesses = None,
    prepared_rows: int | None = None,
) -> dict[str, Any]:
    """Return the resource, without a resourceVersion.

    Args:
        document: Content of job.json.
        prepared_rows: Rows of the prepared training data; None: not prepared yet.
    """
    spec = drop_nulls(document["spec"])
    spec.pop("suspend", None)
    if stored.facts.stop_requested_pid is not None and not stored.run_phase.phase.is_final:
        spec["suspend"] = True
    metadata = {
        **{name: value for name, value in drop_nulls(document["metadata"]).items() if value != {}},
        "name": stored.name,
        "namespace": stored.namespace,
        "uid": stored.uid,
        "creationTimestamp": _rfc3339(stored.created),
        "generation": stored.generation,
    }
    status = _status(stored, spec, processes, prepared_rows)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": spec,
        "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


def drop_nulls(value: Any) -> Any:
    """Drop null fields, which have no meaning in a document."""
    if isinstance(value, Mapping):
        return {name: drop_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [drop_nulls(item) for item in value]
    return value


def _status(
    stored: StoredRun, spec: Mapping[str, Any], processes: RunnerProcesses, prepared_rows: int | None
) -> AlignmentJobStatus:
    run, run_phase = stored.facts.status, stored.run_phase
    running = run_phase.phase in (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING)
    return AlignmentJobStatus(
        observed_generation=stored.generation,
        phase=run_phase.phase,
        message=run_phase.message[:4096] or None,
        step=stored.step,
        max_steps=_total_steps(spec, prepared_rows),
        reward=_finite(stored.reward),
        kl=_finite(stored.metrics.get("kl/reference")),
        weight_version=_to_int(stored.metrics.get("weights/version")),
        start_time=_to_datetime(run.first_started_at or run.started_at) if run is not None else None,
        completion_time=_to_datetime(run.ended_at) if run is not None and run_phase.phase.is_final else None,
        active_since=_to_datetime(run.started_at) if run is not None and running else None,
        active_seconds=run.active_seconds if run is not None else None,
        restarts=_restarts(processes),
        roles=_roles(processes),
        rollout_replicas=_rollout_replicas(processes, spec),
        conditions=_conditions(stored, run, run_phase),
        result=ResultLocation(claim_name="", path=str(stored.folder.result))
        if _has_succeeded(run_phase)
        else None,
    )


def _total_steps(spec: Mapping[str, Any], rows: int | None) -> int | None:
    """Return the job's number of steps; None: not known before the data is prepared."""
    max_steps: int | None = spec.get("maxSteps")
    try:
        # The whole spec takes several times as long to validate, which adds up in a list of jobs.
        algorithm = Algorithm.model_validate(spec["algorithm"]).value
    except ValidationError:
        # Written by another version of kubealign.
        return max_steps
    steps: int | None = algorithm.known_steps(max_steps, rows)
    return steps


def _finite(value: float | None) -> float | None:
    """Return None for values that JSON cannot represent."""
    return value if value is not None and math.isfinite(value) else None


def _to_int(value: float | None) -> int | None:
    finite = _finite(value)
    return None if finite is None else int(finite)


def _has_succeeded(stands: RunPhase) -> bool:
    return stands.phase is JobPhase.SUCCEEDED


def _restarts(processes: RunnerProcesses) -> int | None:
    """Count restarts per unit: the ranks of a group restart together, and each reports it."""
    if processes is None:
        return None
    by_unit: dict[str, int] = {}
    for process in processes:
        if not is_primary(process["name"]):
            continue
        unit = process["name"] if _is_elastic(process["name"]) else process_group(process["name"])
        by_unit[unit] = max(by_unit.get(unit, 0), process["restarts"])
    return sum(by_unit.values())


def _is_elastic(process: str) -> bool:
    spec = ROLE_SPECS.get(process_role(process))
    return spec is not None and spec.elastic


def _roles(processes: RunnerProcesses) -> list[RoleStatus] | None:
    if processes is None:
        return None
    total = Counter(process_group(name) for name in _primary_names(processes))
    ready = Counter(
        process_group(name)
        for name in _primary_names([each for each in processes if each["state"] in _READY_STATES])
    )
    return [RoleStatus(name=group, replicas=count, ready=ready[group]) for group, count in total.items()]


def _primary_names(processes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the primary process of each worker: processes of one worker become ready and fail together."""
    return [process["name"] for process in processes if is_primary(process["name"])]


def _rollout_replicas(processes: RunnerProcesses, spec: Mapping[str, Any]) -> int | None:
    if processes is None:
        return None
    with_trainer = (spec.get("rollout") or {}).get("placement") == RolloutPlacement.WITH_TRAINER
    group = Role.TRAINER if with_trainer else Role.ROLLOUT
    return sum(process_group(name) == group for name in _primary_names(processes))


def _conditions(stored: StoredRun, run: RunStatus | None, stands: RunPhase) -> list[Condition] | None:
    if run is None or not stands.phase.is_final:
        return None
    since = datetime.fromtimestamp(int(run.ended_at or run.started_at), UTC)
    succeeded = _has_succeeded(stands)
    return [
        Condition(
            type=kind,
            status=ConditionStatus.TRUE if is_true else ConditionStatus.FALSE,
            reason=str(stands.phase),
            message=stands.message if is_true else "",
            last_transition_time=since,
            observed_generation=stored.generation,
        )
        for kind, is_true in (("Complete", succeeded), ("Failed", not succeeded))
    ]


def _to_datetime(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(int(seconds), UTC)


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
