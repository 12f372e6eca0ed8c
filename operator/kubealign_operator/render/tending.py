"""Plans which pods are created and deleted to keep the processes of a job running."""

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

#: The index of a worker, in the name of each of its pods.
_WORKER = re.compile(r"-(\d+)(?:-r\d+)?$", re.ASCII)
#: The remaining ranks of a broken gang hang in a collective: a longer grace period is of no use.
_RANK_GRACE_SECONDS = 1


@dataclass
class Work:
    """Pods to delete and to create.

    Args:
        create: Members whose pods are missing, each with the attempt of its unit.
    """

    delete: list[Deletion] = field(default_factory=list)
    create: list[tuple[Member, int]] = field(default_factory=list)
    wake: list[datetime] = field(default_factory=list)


def tend(look: Look, units: Sequence[Unit], startable: frozenset[str]) -> Work:
    """Plan the pod actions. `startable`: names of the units that may start now."""
    actions = Work()
    overdue, requeue_at = give_up(look.pods, look.now)
    actions.delete += overdue
    actions.wake += requeue_at
    for unit in units:
        _replace(look, unit, actions)
        if unit.name in startable and not unit.stale:
            actions.create += [(member, unit.attempt) for member in unit.missing if not member.foreign]
    actions.delete += delete(_unwanted(look))
    return actions


def _replace(snapshot: Look, unit: Unit, actions: Work) -> None:
    """Delete the pods of earlier attempts, finished ones only after the unit's restart backoff."""
    for _, pod in unit.stale:
        retained_until = held_until(unit, pod)
        if retained_until is not None and retained_until > snapshot.now and not pod_state.leaving(pod):
            actions.wake.append(retained_until)
        else:
            is_orphaned_rank = unit.ranks and not pod_state.ended(pod)
            actions.delete += delete([pod], _RANK_GRACE_SECONDS if is_orphaned_rank else None)


def _unwanted(snapshot: Look) -> list[PodView]:
    """Return the pods of processes that the job no longer has, highest worker index first."""
    expected = {names.pod(snapshot.name, process.name) for process in (*snapshot.processes,)}
    expected.add(names.pod(snapshot.name, PREPARE))
    return sorted(
        (pod for pod in snapshot.pods if pod.name not in expected),
        key=lambda pod: (_number(pod), pod.name),
        reverse=True,
    )


def _number(pod: PodView) -> int:
    match = _WORKER.search(pod.name)
    return int(match[1]) if match else -1
