"""How the processes of a job stand: who serves, and what keeps the others from it."""

from collections.abc import Sequence

from kubealign.roles import PREPARE
from kubealign.spec.status import RoleStatus
from kubealign_operator.render import causes, names, pod_state
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.gates import whole
from kubealign_operator.render.look import Look
from kubealign_operator.render.restarts import Restart
from kubealign_operator.render.units import Member, Unit

#: What to tell first, when several things are wrong.
_GRAVITY = (
    "OutOfMemory",
    "Crashed",
    "Evicted",
    "NodeLost",
    "Lost",
    "ImagePull",
    "BadConfiguration",
    "Refused",
    "Unschedulable",
    "NameTaken",
    "Disrupted",
    "SlowStart",
    "Queued",
    "Ending",
)
_NAMED = 3


def roles(units: Sequence[Unit], prepared: bool) -> list[RoleStatus]:
    """By group, in the order in which they start."""
    groups: dict[str, tuple[int, int]] = {}
    for unit in units:
        wanted, ready = groups.get(unit.group, (0, 0))
        more, serving = unit.counts
        done = prepared and unit.name == PREPARE
        groups[unit.group] = wanted + more, ready + (more if done else serving)
    return [RoleStatus(name=name, replicas=wanted, ready=ready) for name, (wanted, ready) in groups.items()]


def obstacle(look: Look, units: Sequence[Unit], restarts: int, budget: int) -> Cause | None:
    """The gravest thing that keeps a process from serving; None: there is nothing but time."""
    found = [
        held
        for unit in units
        for member in unit.members
        for held in _of(look, unit, member, restarts, budget)
    ]
    return min(found, key=lambda held: _gravity(held.reason), default=None)


def awaited(units: Sequence[Unit], startable: frozenset[str]) -> str:
    """Which processes the job waits for, in a sentence; empty: for none."""
    late = [
        member.process.name
        for unit in units
        if unit.name in startable and not whole(unit)
        for member in unit.members
        if member.pod is None or unit.one_shot or not pod_state.ready(member.pod)
    ]
    if not late:
        return ""
    if late == [PREPARE]:
        return "waits for prepare to finish"
    named = ", ".join(late[:_NAMED]) + (f" and {len(late) - _NAMED} more" if len(late) > _NAMED else "")
    return f"waits for {named} to be ready"


def _of(look: Look, unit: Unit, member: Member, restarts: int, budget: int) -> list[Cause]:
    name, pod = member.process.name, member.pod
    if member.foreign:
        return [causes.name_taken(name, member.pod_name)]
    if pod is None:
        why = look.observed.refusals.get(member.pod_name)
        return [] if why is None else [causes.refused(name, why)]
    held = causes.cause(name, pod, look.now, unit.one_shot)
    if held is None:
        return []
    if pod_state.ended(pod) and not pod_state.leaving(pod):
        return [Cause(held.reason, Restart(unit.name, held).told(restarts, budget))]
    return [held]


def refused_objects(look: Look) -> Cause | None:
    """A Service, Secret or the like that could not be made: no pod of the job works without."""
    for name in (names.credentials(look.name), names.document(look.name), names.peers(look.name)):
        why = look.observed.refusals.get(name)
        if why is not None:
            return Cause("Refused", f"{name} was refused: {why}")
    return None


def _gravity(reason: str) -> int:
    return _GRAVITY.index(reason) if reason in _GRAVITY else len(_GRAVITY)
