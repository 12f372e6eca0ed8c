"""What a pod's view says of its process."""

from datetime import datetime, timedelta

from kubealign.process import Exit
from kubealign_operator.render import names
from kubealign_operator.render.observed import ContainerView, PodCondition, PodView, Terminated, Waiting

#: What a node has beyond a pod's grace period to say that the pod has ended.
LOST_AFTER = timedelta(seconds=60)


def main_of(pod: PodView) -> ContainerView | None:
    return next((held for held in pod.containers if held.name == names.MAIN), None)


def terminated(pod: PodView) -> Terminated | None:
    """How its process ended; None: it has not, or nobody knows."""
    main = main_of(pod)
    return None if main is None else main.terminated


def ended(pod: PodView) -> bool:
    """Its process does not run any more, and never will."""
    return terminated(pod) is not None or pod.phase in ("Succeeded", "Failed")


def exit_code(pod: PodView) -> int | None:
    """None: it has not ended, or there is no telling."""
    end = terminated(pod)
    if end is not None:
        return end.exit_code
    return int(Exit.DONE) if pod.phase == "Succeeded" else None


def leaving(pod: PodView) -> bool:
    """It is being deleted."""
    return pod.deletion_at is not None


def ready(pod: PodView) -> bool:
    return pod.ready and not ended(pod) and not leaving(pod)


def lost(pod: PodView, now: datetime) -> bool:
    """Its node has not said in time that it has ended."""
    return pod.deletion_at is not None and now - pod.deletion_at > LOST_AFTER


def begun(pod: PodView) -> bool:
    """A node has taken it: it may have run, and may have a log."""
    return bool(pod.node) or any(held.running or held.terminated for held in pod.containers)


def attempt(pod: PodView) -> int:
    """-1: its label is none of ours."""
    text = pod.labels.get(names.ATTEMPT_LABEL, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def ran_seconds(pod: PodView) -> float:
    """From the process's start to its end; 0 where that is not known."""
    end = terminated(pod)
    if end is None or end.started_at is None or end.finished_at is None:
        return 0.0
    return max(0.0, (end.finished_at - end.started_at).total_seconds())


def finished_at(pod: PodView) -> datetime | None:
    end = terminated(pod)
    return None if end is None else end.finished_at


def waiting(pod: PodView) -> Waiting | None:
    """Why its container, or one that comes before it, does not run."""
    held = [container.waiting for container in pod.containers if container.waiting is not None]
    return next((wait for wait in held if wait.reason not in ("", "PodInitializing")), None)


def condition(pod: PodView, kind: str) -> PodCondition | None:
    return next((held for held in pod.conditions if held.type == kind), None)
