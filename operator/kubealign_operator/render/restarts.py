"""When a unit is started again, and whether that counts against the budget."""

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
    """A unit that is started again because a process of it died."""

    unit: str
    cause: Cause

    def told(self, restarts: int, budget: int) -> str:
        """In a sentence; `restarts`: how many have counted so far."""
        used = f"{restarts} of {budget} restarts used"
        return f"{self.cause.text}; starting {self.unit} again ({used})"


@dataclass(frozen=True)
class Judged:
    """`restarts`: how many have counted so far. `failure`: why the job cannot go on."""

    units: tuple[Unit, ...]
    restarts: int
    new: tuple[Restart, ...] = ()
    failure: Cause | None = None


def judge(units: Sequence[Unit], restarts: int, budget: int, complete: frozenset[str]) -> Judged:
    """Who starts again. `complete`: the groups whose members were all ready at the last look."""
    result: list[Unit] = []
    new: list[Restart] = []
    for unit in units:
        dead = _dead(unit)
        if dead is not None:
            cause = causes.how_it_ended(dead[0].name, dead[1])
            if restarts >= budget:
                return Judged(tuple(units), restarts, tuple(new), _used_up(cause, budget))
            restarts += 1
            new.append(Restart(unit.name, cause))
            result.append(unit.again())
        elif unit.ranks and _torn(unit, complete):
            # Somebody deleted a rank: the others wait for it in collectives that will never end.
            result.append(unit.again())
        else:
            result.append(unit)
    return Judged(tuple(result), restarts, tuple(new))


def held_until(unit: Unit, pod: PodView) -> datetime | None:
    """Until when a dead pod is kept, for its log and to hold its unit back; None: not at all."""
    if not pod_state.ended(pod):
        return None
    # A pod that its node never ran has no end, but was made not long ago.
    finished = pod_state.finished_at(pod) or pod.created_at
    if finished is None:
        return None
    delay = restart_delay(unit.attempt, pod_state.ran_seconds(pod))
    try:
        return finished + timedelta(seconds=delay)
    except OverflowError:
        return None


def _dead(unit: Unit) -> tuple[Process, PodView] | None:
    """The first of the unit's processes to die by itself."""
    dead = [(process, pod) for process, pod in unit.current if _died(unit, pod)]
    return min(dead, key=_when) if dead else None


def _died(unit: Unit, pod: PodView) -> bool:
    done = unit.one_shot and pod_state.exit_code(pod) == Exit.DONE
    return pod_state.ended(pod) and not pod_state.leaving(pod) and not done


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
