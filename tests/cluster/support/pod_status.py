"""Pod status as a kubelet would report it: pure functions of the state of a simulated pod."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime

from .behaviour import Exit, Json, Waiting

_LATE = "Pod was active on the node longer than the specified deadline"


def now() -> str:
    """Return the current time in the format of Kubernetes: UTC, whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class PodState:
    """State of a pod's containers. At most one of `waiting`, `started` and `ended` is set at a time."""

    ip: str
    host_ip: str
    created: str
    ready: bool = False
    restarts: int = 0
    waiting: Waiting | None = None
    started: str | None = None
    ended: Exit | None = None
    ended_at: str | None = None
    last: Json | None = None
    final: bool = False
    late: bool = False

    def is_waiting(self, why: Waiting) -> "PodState":
        return replace(self, waiting=why, started=None, ended=None, ready=False)

    def runs(self, *, ready: bool) -> "PodState":
        return replace(self, waiting=None, started=self.started or now(), ended=None, ready=ready)

    def exits(self, how: Exit, *, final: bool) -> "PodState":
        """Return the state after the containers ended; `final` when they are not started again."""
        return replace(self, waiting=None, ended=how, ended_at=now(), ready=False, final=final)

    def is_late(self, how: Exit) -> "PodState":
        """Return the state after activeDeadlineSeconds, with the containers stopped if they ran."""
        stopped = self.exits(how, final=True) if self.started else self
        return replace(stopped, ready=False, final=True, late=True)

    def restarts_again(self) -> "PodState":
        """Return the state in back-off before the next run, which follows `exits`."""
        backoff = Waiting("CrashLoopBackOff", "back-off restarting failed container")
        last = {"terminated": _terminated(self)} if self.ended else self.last
        return replace(self.is_waiting(backoff), restarts=self.restarts + 1, last=last)


def restarted(policy: str, how: Exit) -> bool:
    """Return True when the restart policy of a pod starts its containers again after this exit."""
    return policy == "Always" or (policy == "OnFailure" and how.code != 0)


def status(pod: Json, state: PodState) -> Json:
    """Return the complete status of `pod`, for a strategic merge patch."""
    running = state.waiting is None and state.ended is None and state.started is not None
    answer: Json = {
        "phase": _phase(state, running),
        "hostIP": state.host_ip,
        "hostIPs": [{"ip": state.host_ip}],
        "startTime": state.created,
        "conditions": [
            _condition("PodReadyToStartContainers", True),
            _condition("Initialized", True),
            _condition("ContainersReady", state.ready),
            _condition("Ready", state.ready),
        ],
        "containerStatuses": [_container(spec, state) for spec in pod["spec"]["containers"]],
        "podIP": state.ip,
        "podIPs": [{"ip": state.ip}],
    }
    if state.late:
        answer |= {"reason": "DeadlineExceeded", "message": _LATE}
    if first := pod["spec"].get("initContainers"):
        answer["initContainerStatuses"] = [_init_container(spec, state, running) for spec in first]
    return answer


def _phase(state: PodState, running: bool) -> str:
    if state.late:
        return "Failed"
    if state.final and state.ended is not None:
        return "Succeeded" if state.ended.code == 0 else "Failed"
    return "Running" if running or state.restarts or state.ended else "Pending"


def _condition(kind: str, holds: bool) -> Json:
    return {"type": kind, "status": "True" if holds else "False", "lastTransitionTime": now()}


def _terminated(state: PodState) -> Json:
    ended = state.ended or Exit()
    return {
        "exitCode": ended.code,
        "reason": ended.reason or ("Completed" if ended.code == 0 else "Error"),
        "message": ended.message,
        "startedAt": state.started or state.ended_at,
        "finishedAt": state.ended_at,
        "containerID": "simulated://container",
    }


def _container(spec: Json, state: PodState) -> Json:
    if state.ended is not None:
        current: Json = {"terminated": _terminated(state)}
    elif state.waiting is not None:
        current = {"waiting": {"reason": state.waiting.reason, "message": state.waiting.message}}
    elif state.started is not None:
        current = {"running": {"startedAt": state.started}}
    else:
        current = {"waiting": {"reason": "ContainerCreating"}}
    return {
        "name": spec["name"],
        "image": spec["image"],
        "imageID": "",
        "ready": state.ready,
        "started": state.started is not None and state.ended is None,
        "restartCount": state.restarts,
        "state": current,
        "lastState": state.last or {},
    }


def _init_container(spec: Json, state: PodState, running: bool) -> Json:
    """Return the status of an init container: running for a sidecar, otherwise completed."""
    base = {"name": spec["name"], "image": spec["image"], "imageID": "", "restartCount": 0, "lastState": {}}
    if spec.get("restartPolicy") == "Always" and running:
        return {**base, "ready": True, "started": True, "state": {"running": {"startedAt": state.started}}}
    done = {"exitCode": 0, "reason": "Completed", "startedAt": state.created, "finishedAt": state.created}
    return {**base, "ready": True, "started": False, "state": {"terminated": done}}
