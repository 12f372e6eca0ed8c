"""The restart policy: when a unit is restarted, and whether that counts against the restart budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kubealign.backoff import restart_delay
from kubealign.process import Exit
from kubealign.roles import Process
from kubealign_operator.render import causes, pod_state
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.observed import PodView
from kubealign_operator.render.units import Unit


@dataclass(frozen=True)
class Restart:
    """A restart of a unit because one of its processes failed."""

    unit: str
    cause: Cause

    def told(self, restarts: int, budget: int) -> str:
        """Describe the restart in a sentence.

        Args:
            restarts: Restarts counted so far.
            budget: Restarts that the job allows.
        """
        used = f"{restarts} of {budget} restarts used"
        return f"{self.cause.text}; starting {self.unit} again ({used})"


@dataclass(frozen=True)
class Judged:
    """The outcome of the restart policy.

    Args:
        restarts: Restarts counted so far.
        failure: Reason why the job cannot continue.
    """

    units: tuple[Unit, ...]
    restarts: int
    new: tuple[Restart, ...] = ()
    failure: Cause | None = None


def judge(units: Sequence[Unit], restarts: int, budget: int, complete: frozenset[str]) -> Judged:
    """Decide which units restart.

    Args:
        units: Units with their pods.
        restarts: Restarts counted so far.
        budget: Restarts that the job allows.
        complete: Names of the groups that were completely ready at the previous reconcile.
    """
    result: list[Unit] = []
    new: list[Restart] = []
    for unit in units:
        crashed = _dead(unit)
        if crashed is not None:
            reason = causes.how_it_ended(crashed[0].name, crashed[1])
            if restarts >= budget:
                return Judged(tuple(units), restarts, tuple(new), _used_up(reason, budget))
            restarts += 1
            new.append(Restart(unit.name, reason))
            result.append(unit.again())
        elif unit.ranks and _torn(unit, complete):
            # A rank was deleted from outside: the other ranks would hang in their collectives forever.
            result.append(unit.again())
        else:
            result.append(unit)
    return Judged(tuple(result), restarts, tuple(new))


def held_until(unit: Unit, pod: PodView) -> datetime | None:
    """Return the time until which a dead pod is retained for its log and as restart backoff; None: not
    retained.
    """
    if not pod_state.ended(pod):
        return None
    # A pod that its node never ran has no finish time; its creation time is recent enough.
    finished = pod_state.finished_at(pod) or pod.created_at
    if finished is None:
        return None
    delay = restart_delay(unit.attempt, pod_state.ran_seconds(pod))
    try:
        return finished + timedelta(seconds=delay)
    except OverflowError:
        return None


def _dead(unit: Unit) -> tuple[Process, PodView] | None:
    """Return the first process of the unit that failed by itself."""
    crashed = [(process, pod) for process, pod in unit.current if _died(unit, pod)]
    return min(crashed, key=_when) if crashed else None


def _died(unit: Unit, pod: PodView) -> bool:
    is_done = unit.one_shot and pod_state.exit_code(pod) == Exit.DONE
    return pod_state.ended(pod) and not pod_state.leaving(pod) and not is_done


def _when(entry: tuple[Process, PodView]) -> float:
    finished = pod_state.finished_at(entry[1])
    return finished.timestamp() if finished is not None else float("inf")


def _torn(unit: Unit, complete: frozenset[str]) -> bool:
    if any(pod_state.leaving(pod) for _, pod in unit.current):
        return True
    return unit.group in complete and bool(unit.current) and bool(unit.missing)


def _used_up(cause: Cause, budget: int) -> Cause:
    text = f"all {budget} restarts are used up" if budget else "the job allows no restart"
    return replace(cause, text=f"{cause.text}; {text} (lifecycle.maxRestarts)")
