"""In which order the processes of a job start."""

from collections.abc import Sequence

from kubealign.process import Role
from kubealign.roles import PREPARE
from kubealign.spec.job import AlignmentJob
from kubealign_operator.render import names, pod_state
from kubealign_operator.render.units import Unit


def prepared_by(units: Sequence[Unit]) -> bool:
    """Preparation has done its work."""
    return any(
        pod_state.exit_code(pod) == 0
        for unit in units
        if unit.name == PREPARE
        for _, pod in (*unit.current, *unit.stale)
    )


def all_ready(units: Sequence[Unit], job: AlignmentJob) -> bool:
    """Everything that the driver needs serves; of the rollout workers as many as the job has to have."""
    rollout = job.spec.own_rollout
    wanted = 0 if rollout is None else rollout.min_replicas
    workers = [unit for unit in units if unit.name not in (PREPARE, names.DRIVER)]
    rollouts = [unit for unit in workers if unit.group == Role.ROLLOUT]
    others = [unit for unit in workers if unit.group != Role.ROLLOUT]
    return all(whole(unit) for unit in others) and sum(map(whole, rollouts)) >= wanted


def whole(unit: Unit) -> bool:
    """All of its processes serve, or are done."""
    return unit.ready == len(unit.members)


def open_to(unit: Unit, units: Sequence[Unit], prepared: bool, running: bool) -> bool:
    """Whether the unit may start: bus and preparation at once, the driver last, the others in between. In a
    job that runs, at any time."""
    if running or unit.name in (names.NATS, PREPARE):
        return True
    bus = all(whole(held) for held in units if held.name == names.NATS)
    return prepared and bus and unit.name != names.DRIVER
