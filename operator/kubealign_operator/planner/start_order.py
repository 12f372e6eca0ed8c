"""The order in which the processes of a job start."""

from collections.abc import Callable, Sequence

from kubealign.process_settings import Role
from kubealign.role_specs import StartStage
from kubealign.roles import PREPARE
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import ConditionStatus, JobPhase
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.planner.plan import PREPARED
from kubealign_operator.planner.previous_status import condition_of
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.snapshot import JobSnapshot


def was_prepared(snapshot: JobSnapshot) -> bool:
    """Return True when the status records that preparation has finished."""
    condition = condition_of(snapshot.previous_status, PREPARED)
    return snapshot.previous_status.phase is JobPhase.RUNNING or (
        condition is not None and condition.status is ConditionStatus.TRUE
    )


def has_prepared(units: Sequence[ProcessUnit]) -> bool:
    """Return True when preparation has finished successfully."""
    return any(
        pod_state.exit_code(pod) == 0
        for unit in units
        if unit.name == PREPARE
        for pod in (*(pod for _, pod in (*unit.current_pods, *unit.stale_pods)), *unit.leftover_pods)
    )


def all_ready(units: Sequence[ProcessUnit], job: AlignmentJob) -> bool:
    """Return True when everything that the driver needs is ready; of the rollout workers, `minReplicas`, and
    one environment worker.
    """
    return has_enough([unit for unit in units if not unit.runs_to_completion], job, is_complete)


def has_enough(
    units: Sequence[ProcessUnit], job: AlignmentJob, condition: Callable[[ProcessUnit], bool]
) -> bool:
    """Return True when the condition holds for all units but the driver; of the rollout workers, for
    `minReplicas` of those that there are, and for one environment worker.
    """
    rollout = job.spec.own_rollout
    least: dict[str, int] = {
        Role.ROLLOUT: 0 if rollout is None else rollout.min_replicas,
        Role.ENVIRONMENT: 1,
    }
    needed = [unit for unit in units if unit.start is not StartStage.LAST]
    return all(condition(unit) for unit in needed if unit.group not in least) and all(
        _has_least([unit for unit in needed if unit.group == group], count, condition)
        for group, count in least.items()
    )


def _has_least(units: Sequence[ProcessUnit], count: int, condition: Callable[[ProcessUnit], bool]) -> bool:
    """Return True when the condition holds for `count` of the units, or for all if there are fewer."""
    return sum(map(condition, units)) >= min(count, len(units))


def is_complete(unit: ProcessUnit) -> bool:
    """Return True when all processes of the unit are ready, or finished."""
    return unit.ready_count == unit.process_count


def is_scheduled(unit: ProcessUnit) -> bool:
    """Return True when all pods of the unit have a node."""
    return all(member.pod is not None and pod_state.was_scheduled(member.pod) for member in unit.members)


def startable_units(units: Sequence[ProcessUnit], prepared: bool, running: bool) -> frozenset[str]:
    """Return the names of the units that may start.

    The bus and preparation start at once, the driver last, all other units in between. In a running job
    every unit may start at any time.
    """
    bus_ready = all(is_complete(unit) for unit in units if unit.name == names.NATS)
    is_middle_open = prepared and bus_ready
    return frozenset(
        unit.name
        for unit in units
        if running or unit.start is StartStage.FIRST or (is_middle_open and unit.start is not StartStage.LAST)
    )
