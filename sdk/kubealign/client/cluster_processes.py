"""Process records of a job, derived from its pods. Pure."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.labels import ATTEMPT_LABEL, MAIN, PROCESS_LABEL, ROLE_LABEL
from kubealign.last_words import last_words, short
from kubealign.process import Exit
from kubealign.roles import PREPARE

Json = Mapping[str, Any]

#: Display order of the processes; the driver is first because it is the most informative.
_ORDER = ("driver", "trainer", "critic", "rollout", "reward", "reference", "teacher", "prepare", "nats")
_BEGINNING = ("", "ContainerCreating", "PodInitializing")


def processes(
    pods: Sequence[Json], says: Mapping[str, Mapping[str, Any]], now: float, *, over: bool, held: bool
) -> list[ProcessRecord]:
    """Return the process records in display order.

    Args:
        heartbeats: Last heartbeat by process name.
        now: Seconds since the epoch.
        finished: The job has finished.
        suspended: The job is suspended or being suspended.
    """
    records = [_process(pod, says, now, over, held) for pod in pods if process_of(pod)]
    return sorted(records, key=lambda process: (_rank(process.role), _natural(process.name)))


def process_of(pod: Json) -> str:
    """Return the process name of a pod; empty if the pod is not a process of a job."""
    return str(_labels(pod).get(PROCESS_LABEL) or "")


def role_of(pod: Json) -> str:
    """Return the role as in records.ProcessRecord.

    prepare has a role of its own here, although it uses the driver's certificate.
    """
    return PREPARE if process_of(pod) == PREPARE else str(_labels(pod).get(ROLE_LABEL) or "")


def begun(pod: Json) -> bool:
    """Return True if the main container runs or has run, so that a log exists."""
    return bool({"running", "terminated"} & set(_state(pod)))


def _process(
    pod: Json, says: Mapping[str, Mapping[str, Any]], now: float, over: bool, held: bool
) -> ProcessRecord:
    name = process_of(pod)
    state, message = state_of(pod, over=over, held=held)
    heartbeat = dict(says.get(name) or {})
    reported_at = heartbeat.pop("time", None)
    attempt = str(_labels(pod).get(ATTEMPT_LABEL) or "0")
    return ProcessRecord(
        name=name,
        role=role_of(pod),
        state=state,
        restarts=int(attempt) if attempt.isdecimal() else 0,
        message=message,
        started=_started(pod),
        says=heartbeat,
        silent_seconds=max(0.0, now - reported_at) if isinstance(reported_at, int | float) else None,
        where=str(pod["metadata"].get("name") or ""),
    )


def state_of(pod: Json, *, over: bool, held: bool) -> tuple[ProcessState, str]:
    """Return the state of a pod's process, and the reason why it is not ready."""
    status, state = pod.get("status") or {}, _state(pod)
    terminated = state.get("terminated")
    if terminated is not None or status.get("phase") in ("Succeeded", "Failed"):
        return _ended(status, terminated or {}, over, held)
    if pod["metadata"].get("deletionTimestamp"):
        return (ProcessState.STOPPED if over or held else ProcessState.RESTARTING), "is terminating"
    if "running" in state:
        return (
            (ProcessState.READY, "")
            if _ready(status)
            else (ProcessState.STARTING, "is running, and is not ready yet")
        )
    return _unborn(pod, status, state.get("waiting") or {})


def _ended(status: Json, ended: Json, over: bool, held: bool) -> tuple[ProcessState, str]:
    code = ended.get("exitCode")
    if code == Exit.DONE or (code is None and status.get("phase") == "Succeeded"):
        return ProcessState.FINISHED, ""
    if (over or held) and (code == Exit.STOPPED or status.get("reason") == "DeadlineExceeded"):
        return ProcessState.STOPPED, "was stopped with its job"
    failed_state = ProcessState.FAILED if over or held or code == Exit.PERMANENT else ProcessState.RESTARTING
    return failed_state, _end(status, ended)


def _end(status: Json, ended: Json) -> str:
    if ended.get("reason") == "OOMKilled":
        return "was killed: it exceeded its memory limit (OOMKilled)"
    if status.get("reason") in ("Evicted", "NodeLost"):
        return f"{status['reason']}: {short(str(status.get('message') or 'no reason was reported'))}"
    code, text = ended.get("exitCode"), str(ended.get("message") or "").strip()
    summary = "ended without an exit code" if code is None else _code(int(code))
    detail = last_words(text) if text.startswith("{") else short(text)
    return f"{summary}: {detail}" if detail else summary


def _code(code: int) -> str:
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"ended with code {code}"


def _unborn(pod: Json, status: Json, waiting: Json) -> tuple[ProcessState, str]:
    reason, message = str(waiting.get("reason") or ""), short(str(waiting.get("message") or ""))
    if reason not in _BEGINNING:
        return ProcessState.WAITING, f"cannot start: {message or reason}"
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == "SchedulingGated":
                return ProcessState.WAITING, "waits for admission by its queue"
            return ProcessState.WAITING, f"fits on no node: {short(str(condition.get('message') or ''))}"
    node = (pod.get("spec") or {}).get("nodeName")
    if not node:
        return ProcessState.WAITING, "waits for a node"
    return ProcessState.STARTING, f"its image and volumes are being prepared on node {node}"


def _labels(pod: Json) -> Json:
    labels: Json = pod["metadata"].get("labels") or {}
    return labels


def _main(pod: Json) -> Json:
    return next(_statuses(pod), {})


def _statuses(pod: Json) -> Iterator[Json]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == MAIN:
            yield status


def _state(pod: Json) -> Json:
    state: Json = _main(pod).get("state") or {}
    return state


def _ready(status: Json) -> bool:
    conditions = status.get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _started(pod: Json) -> datetime | None:
    state = _state(pod)
    text = ((state.get("running") or state.get("terminated")) or {}).get("startedAt")
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def _rank(role: str) -> int:
    return _ORDER.index(role) if role in _ORDER else len(_ORDER)


def _natural(name: str) -> tuple[str, int]:
    """Return a sort key that orders rollout-2 before rollout-10."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (name, 0)
