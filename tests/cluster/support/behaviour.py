"""What a simulated pod is to do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Exit:
    """How the containers of a pod end: exit code, termination message, and the reason that Kubernetes gives.

    Without a reason it is Completed for code 0 and Error otherwise; OOMKilled goes with code 137."""

    code: int = 0
    message: str = ""
    reason: str | None = None


@dataclass(frozen=True)
class Waiting:
    """Why containers do not start, such as ImagePullBackOff, with the text that a kubelet would give."""

    reason: str
    message: str = ""


@dataclass(frozen=True)
class Behaviour:
    """One run of a pod's containers; all seconds.

    `stuck` keeps them from starting. `exit` ends them `exit_after` seconds after they became ready. Where the
    pod's restart policy starts them again, that happens after `restart_after`. When the pod is deleted they
    take `stop_after` and leave with `stopped`; at the end of the pod's grace period they are killed."""

    start_after: float = 0.0
    ready_after: float = 0.0
    stuck: Waiting | None = None
    exit: Exit | None = None
    exit_after: float = 0.0
    restart_after: float = 0.5
    stop_after: float = 0.0
    stopped: Exit = Exit(code=143)


Behave = Callable[[Json], Behaviour]
"""Asked before each run of a pod's containers; the pod's status tells how often they have restarted."""


def always(behaviour: Behaviour) -> Behave:
    """The same for every pod."""
    return lambda pod: behaviour
