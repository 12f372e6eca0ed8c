"""What is made and removed to keep the processes of a job going."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kubealign.roles import PREPARE
from kubealign_operator.render import names, pod_state
from kubealign_operator.render.look import Look
from kubealign_operator.render.observed import PodView
from kubealign_operator.render.removal import delete, give_up
from kubealign_operator.render.rendered import Deletion
from kubealign_operator.render.restarts import held_until
from kubealign_operator.render.units import Member, Unit

#: The number of a worker, in the name of each of its pods.
_WORKER = re.compile(r"-(\d+)(?:-r\d+)?$", re.ASCII)
#: The ranks that outlive one of theirs hang in a collective: waiting for them is no use.
_RANK_GRACE_SECONDS = 1


@dataclass
class Work:
    """`create`: the members whose pods are to be made, with their unit's attempt."""

    delete: list[Deletion] = field(default_factory=list)
    create: list[tuple[Member, int]] = field(default_factory=list)
    wake: list[datetime] = field(default_factory=list)


def tend(look: Look, units: Sequence[Unit], startable: frozenset[str]) -> Work:
    """`startable`: the names of the units that may start now."""
    work = Work()
    overdue, wake = give_up(look.pods, look.now)
    work.delete += overdue
    work.wake += wake
    for unit in units:
        _replace(look, unit, work)
        if unit.name in startable and not unit.stale:
            work.create += [(member, unit.attempt) for member in unit.missing if not member.foreign]
    work.delete += delete(_unwanted(look))
    return work


def _replace(look: Look, unit: Unit, work: Work) -> None:
    """Remove what is left of earlier attempts: those that ended when their unit has waited long enough."""
    for _, pod in unit.stale:
        until = held_until(unit, pod)
        if until is not None and until > look.now and not pod_state.leaving(pod):
            work.wake.append(until)
        else:
            hurry = unit.ranks and not pod_state.ended(pod)
            work.delete += delete([pod], _RANK_GRACE_SECONDS if hurry else None)


def _unwanted(look: Look) -> list[PodView]:
    """Pods of processes that the job has no longer: of rollout workers the highest number goes first."""
    known = {names.pod(look.name, process.name) for process in (*look.processes,)}
    known.add(names.pod(look.name, PREPARE))
    return sorted(
        (pod for pod in look.pods if pod.name not in known),
        key=lambda pod: (_number(pod), pod.name),
        reverse=True,
    )


def _number(pod: PodView) -> int:
    found = _WORKER.search(pod.name)
    return int(found[1]) if found else -1
