"""Process records of a job, derived from its pods. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.labels import (
    ATTEMPT_LABEL,
    MAIN_CONTAINER,
    PROCESS_LABEL,
    PROCESSES_LABEL,
    QUEUE_LABEL,
    ROLE_LABEL,
    WORKER_RANK_LABEL,
)
from kubealign.process_failure import (
    PodTermination,
    describe_termination,
    describe_unscheduled,
    describe_waiting_container,
    permanent_failure_details,
)
from kubealign.process_settings import ExitCode
from kubealign.role_specs import PREPARE, display_position
from kubealign.roles import pod_process_names
from kubealign.termination_message import truncate_middle

Json = Mapping[str, Any]
Pod = TypeVar("Pod", bound=Json)

_INITIALISING_REASONS = ("", "ContainerCreating", "PodInitializing")


def to_process_records(
    pods: Sequence[Json],
    heartbeats: Mapping[str, Mapping[str, Any]],
    now: float,
    *,
    finished: bool,
    suspended: bool,
) -> list[ProcessRecord]:
    """Return the process records in display order.

    Args:
        heartbeats: Last heartbeat by process name.
        now: Seconds since the epoch.
        finished: The job has finished.
        suspended: The job is suspended or being suspended.
    """
    records = [
        _to_process_record(pod, name, heartbeats, now, finished, suspended)
        for pod in newest_pods(pods)
        for name in process_names(pod)
    ]
    return sorted(records, key=lambda process: (display_position(process.role), _natural_key(process.name)))


def process_name(pod: Json) -> str:
    """Return the name of a pod's first process; empty if the pod does not belong to a job."""
    return str(_labels(pod).get(PROCESS_LABEL) or "")


def process_names(pod: Json) -> list[str]:
    """Return the names of all processes of a pod, by rank; empty if the pod does not belong to a job."""
    first, labels = process_name(pod), _labels(pod)
    count, rank = str(labels.get(PROCESSES_LABEL) or "1"), str(labels.get(WORKER_RANK_LABEL) or "")
    if not first or not count.isdecimal():
        return [first] if first else []
    return pod_process_names(first, int(count), int(rank) if rank.isdecimal() else None)


def newest_pods(pods: Sequence[Pod]) -> list[Pod]:
    """Return the newest pod of each process: those of earlier attempts may be kept, for their logs or by
    finalizers.
    """
    newest: dict[str, Pod] = {}
    for pod in sorted(filter(process_name, pods), key=_attempt):
        newest[process_name(pod)] = pod
    return list(newest.values())


def failed_pods(pods: Sequence[Pod], *, finished: bool) -> list[Pod]:
    """Return the pod of the last failed attempt of each process, where it is kept.

    Args:
        finished: The job has finished, so that no process has an attempt after its newest pod.
    """
    last = {pod["metadata"]["uid"] for pod in newest_pods(pods)} if finished else set()
    return newest_pods([pod for pod in pods if has_failed(pod) and pod["metadata"]["uid"] not in last])


def has_failed(pod: Json) -> bool:
    """Return True if the pod has failed and its log can be read."""
    return (pod.get("status") or {}).get("phase") == "Failed" and has_started(pod) and not is_leftover(pod)


def is_leftover(pod: Json) -> bool:
    """Return True if the pod was deleted and only its finalizers keep the object: its log is gone."""
    metadata = pod["metadata"]
    return bool(metadata.get("deletionTimestamp")) and metadata.get("deletionGracePeriodSeconds") == 0


def pod_role(pod: Json) -> str:
    """Return the role as in records.ProcessRecord.

    prepare has a role of its own here, although it uses the driver's certificate.
    """
    return PREPARE if process_name(pod) == PREPARE else str(_labels(pod).get(ROLE_LABEL) or "")


def has_started(pod: Json) -> bool:
    """Return True if the main container runs or has run, so that a log exists."""
    return bool({"running", "terminated"} & set(_container_state(pod)))


def _to_process_record(
    pod: Json,
    name: str,
    heartbeats: Mapping[str, Mapping[str, Any]],
    now: float,
    finished: bool,
    suspended: bool,
) -> ProcessRecord:
    state, message = process_state(pod, finished=finished, suspended=suspended)
    heartbeat = dict(heartbeats.get(name) or {})
    reported_at = heartbeat.pop("time", None)
    return ProcessRecord(
        name=name,
        role=pod_role(pod),
        state=state,
        restarts=_attempt(pod),
        message=message,
        started=_start_time(pod),
        says=heartbeat,
        silent_seconds=max(0.0, now - reported_at) if isinstance(reported_at, int | float) else None,
        where=str(pod["metadata"].get("name") or ""),
    )


def process_state(pod: Json, *, finished: bool, suspended: bool) -> tuple[ProcessState, str]:
    """Return the state of a pod's process, and the reason why it is not ready."""
    status, state = pod.get("status") or {}, _container_state(pod)
    terminated = state.get("terminated")
    if terminated is not None or status.get("phase") in ("Succeeded", "Failed"):
        return _terminated_state(pod, terminated or {}, finished, suspended)
    if pod["metadata"].get("deletionTimestamp"):
        return (ProcessState.STOPPED if finished or suspended else ProcessState.RESTARTING), "is terminating"
    if "running" in state:
        return (
            (ProcessState.READY, "")
            if _is_ready(status)
            else (ProcessState.STARTING, "is running, and is not ready yet")
        )
    return _waiting_state(pod, status, state.get("waiting") or {})


def _terminated_state(
    pod: Json, terminated: Json, finished: bool, suspended: bool
) -> tuple[ProcessState, str]:
    status, code = pod.get("status") or {}, terminated.get("exitCode")
    if code == ExitCode.DONE or (code is None and status.get("phase") == "Succeeded"):
        return ProcessState.FINISHED, ""
    if (finished or suspended) and (code == ExitCode.STOPPED or status.get("reason") == "DeadlineExceeded"):
        return ProcessState.STOPPED, "was stopped with its job"
    if code == ExitCode.PERMANENT:
        details = permanent_failure_details(str(terminated.get("message") or ""))
        return ProcessState.FAILED, details or "reported a permanent failure without a message"
    failed_state = ProcessState.FAILED if finished or suspended else ProcessState.RESTARTING
    return failed_state, describe_termination(_to_termination(pod, terminated)).text


def _to_termination(pod: Json, terminated: Json) -> PodTermination:
    status, spec, code = pod.get("status") or {}, pod.get("spec") or {}, terminated.get("exitCode")
    main: Json = next((each for each in spec.get("containers") or () if each["name"] == MAIN_CONTAINER), {})
    limits = (main.get("resources") or {}).get("limits") or {}
    return PodTermination(
        exit_code=None if code is None else int(code),
        reason=str(terminated.get("reason") or ""),
        message=str(terminated.get("message") or ""),
        pod_reason=str(status.get("reason") or ""),
        pod_message=str(status.get("message") or ""),
        node=str(spec.get("nodeName") or ""),
        memory_limit=str(limits.get("memory") or ""),
    )


def _waiting_state(pod: Json, status: Json, waiting: Json) -> tuple[ProcessState, str]:
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if reason not in _INITIALISING_REASONS:
        failure = describe_waiting_container(reason, message)
        fallback = f"cannot be started: {truncate_middle(message) or reason}"
        return ProcessState.WAITING, fallback if failure is None else failure.text
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            reason, message = str(condition.get("reason") or ""), str(condition.get("message") or "")
            failure = describe_unscheduled(reason, message, str(_labels(pod).get(QUEUE_LABEL) or ""))
            if failure is not None:
                return ProcessState.WAITING, failure.text
    node = (pod.get("spec") or {}).get("nodeName")
    if not node:
        return ProcessState.WAITING, "waits for a node"
    return ProcessState.STARTING, f"its image and volumes are being prepared on node {node}"


def _labels(pod: Json) -> Json:
    labels: Json = pod["metadata"].get("labels") or {}
    return labels


def _attempt(pod: Json) -> int:
    attempt = str(_labels(pod).get(ATTEMPT_LABEL) or "0")
    return int(attempt) if attempt.isdecimal() else 0


def _main_status(pod: Json) -> Json:
    return next(_main_statuses(pod), {})


def _main_statuses(pod: Json) -> Iterator[Json]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == MAIN_CONTAINER:
            yield status


def _container_state(pod: Json) -> Json:
    state: Json = _main_status(pod).get("state") or {}
    return state


def _is_ready(status: Json) -> bool:
    conditions = status.get("conditions") or ()
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions
    )


def _start_time(pod: Json) -> datetime | None:
    state = _container_state(pod)
    text = ((state.get("running") or state.get("terminated")) or {}).get("startedAt")
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _natural_key(name: str) -> tuple[str, int]:
    """Return a sort key that orders rollout-2 before rollout-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)
