"""Scripted behaviour of a simulated pod."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Exit:
    """End of a pod's containers: exit code, termination message, and the reason that Kubernetes gives.

    The reason defaults to Completed for code 0 and to Error otherwise; OOMKilled goes with code 137."""

    code: int = 0
    message: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class Waiting:
    """Reason for containers not to start, such as ImagePullBackOff, with the text of a kubelet."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Behaviour:
    """One run of a pod's containers; all times in seconds.

    `stuck` keeps the containers from starting. `exit` ends them `exit_after` seconds after they became ready.
    Where the pod's restart policy starts the containers again, the restart happens after `restart_after`.
    When the pod is deleted, the containers take `stop_after` and end with `stopped`; at the end of the pod's
    grace period they are killed."""

    start_after: float = 0.0
    ready_after: float = 0.0
    stuck: Waiting | None = None
    exit: Exit | None = None
    exit_after: float = 0.0
    restart_after: float = 0.5
    stop_after: float = 0.0
    stopped: Exit = Exit(code=143)


Behave = Callable[[Json], Behaviour]
"""Called before each run of a pod's containers; the pod's status has the number of restarts."""


def always(behaviour: Behaviour) -> Behave:
    """Return the same behaviour for every pod."""
    return lambda pod: behaviour
