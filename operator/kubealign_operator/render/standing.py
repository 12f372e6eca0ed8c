"""Readiness of a job's processes, and what blocks those that are not ready."""

from collections.abc import Sequence

from kubealign.roles import PREPARE
from kubealign.spec.status import RoleStatus
from kubealign_operator.render import causes, names, pod_state
from kubealign_operator.render.causes import Cause
from kubealign_operator.render.gates import whole
from kubealign_operator.render.look import Look
from kubealign_operator.render.restarts import Restart
from kubealign_operator.render.units import Member, Unit

#: Reasons by severity: the first one found is shown in the status.
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
    """Return the status of each group, in the order in which the groups start."""
    groups: dict[str, tuple[int, int]] = {}
    for unit in units:
        desired, ready = groups.get(unit.group, (0, 0))
        unit_desired, unit_ready = unit.counts
        is_done = prepared and unit.name == PREPARE
        groups[unit.group] = desired + unit_desired, ready + (unit_desired if is_done else unit_ready)
    return [RoleStatus(name=name, replicas=desired, ready=ready) for name, (desired, ready) in groups.items()]


def obstacle(look: Look, units: Sequence[Unit], restarts: int, budget: int) -> Cause | None:
    """Return the most severe reason why a process is not ready; None: nothing but time."""
    reasons = [
        candidate
        for unit in units
        for member in unit.members
        for candidate in _of(look, unit, member, restarts, budget)
    ]
    return min(reasons, key=lambda candidate: _gravity(candidate.reason), default=None)


def awaited(units: Sequence[Unit], startable: frozenset[str]) -> str:
    """Return a sentence that names the processes the job waits for; empty: none."""
    pending = [
        member.process.name
        for unit in units
        if unit.name in startable and not whole(unit)
        for member in unit.members
        if member.pod is None or unit.one_shot or not pod_state.ready(member.pod)
    ]
    if not pending:
        return ""
    if pending == [PREPARE]:
        return "waits for prepare to finish"
    listed = ", ".join(pending[:_NAMED]) + (f" and {len(pending) - _NAMED} more" if len(pending) > _NAMED else "")
    return f"waits for {listed} to be ready"


def _of(snapshot: Look, unit: Unit, member: Member, restarts: int, budget: int) -> list[Cause]:
    name, pod = member.process.name, member.pod
    if member.foreign:
        return [causes.name_taken(name, member.pod_name)]
    if pod is None:
        error = snapshot.observed.refusals.get(member.pod_name)
        return [] if error is None else [causes.refused(name, error)]
    found_reason = causes.cause(name, pod, snapshot.now, unit.one_shot)
    if found_reason is None:
        return []
    if pod_state.ended(pod) and not pod_state.leaving(pod):
        return [Cause(found_reason.reason, Restart(unit.name, found_reason).told(restarts, budget))]
    return [found_reason]


def refused_objects(look: Look) -> Cause | None:
    """Return the reason when the Service, Secret or ConfigMap could not be created: no pod works without
    them.
    """
    for name in (names.credentials(look.name), names.document(look.name), names.peers(look.name)):
        error = look.observed.refusals.get(name)
        if error is not None:
            return Cause("Refused", f"{name} was refused: {error}")
    return None


def _gravity(reason: str) -> int:
    return _GRAVITY.index(reason) if reason in _GRAVITY else len(_GRAVITY)
