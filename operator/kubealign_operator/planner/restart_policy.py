"""The restart policy: when a unit is restarted, and whether that counts against the restart budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kubealign.backoff import restart_delay
from kubealign.process_settings import ExitCode
from kubealign.roles import Process
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.planner import failure_reasons
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.process_units import ProcessUnit

_MAX_NAMED = 3


@dataclass(frozen=True)
class UnitRestart:
    """A restart of a unit because one of its processes failed.

    Args:
        counted: False where the cluster ended the process, or storage failed: that spends no restart.
    """

    unit: str
    failure: FailureReason
    counted: bool = True

    def describe(self, restarts: int, budget: int) -> str:
        """Describe the restart in a sentence.

        Args:
            restarts: Restarts counted so far.
            budget: Restarts that the job allows.
        """
        used = f"{restarts} of {budget} restarts used" if self.counted else "not counted"
        return f"{self.failure.message}; starting {self.unit} again ({used})"


@dataclass(frozen=True)
class RestartOutcome:
    """The outcome of the restart policy.

    Args:
        restarts: Restarts counted so far.
        replacements: Units that restart without a failure of their own, and for no counted restart.
        failure: Reason why the job cannot continue.
    """

    units: tuple[ProcessUnit, ...]
    restarts: int
    new_restarts: tuple[UnitRestart, ...] = ()
    replacements: tuple[UnitRestart, ...] = ()
    failure: FailureReason | None = None


def apply_restart_policy(
    units: Sequence[ProcessUnit], restarts: int, budget: int, complete: frozenset[str]
) -> RestartOutcome:
    """Decide which units restart.

    Args:
        units: Units with their pods.
        restarts: Restarts counted so far.
        budget: Restarts that the job allows.
        complete: Names of the groups that were completely ready at the previous reconcile.
    """
    result: list[ProcessUnit] = []
    new: list[UnitRestart] = []
    replacements: list[UnitRestart] = []
    for unit in units:
        crashed = _first_crash(unit)
        if crashed is not None and pod_state.exit_code(crashed[1]) == ExitCode.REPLACED:
            # Its successor owns the run directory: no failure of the job.
            reason = failure_reasons.termination_reason(crashed[0].name, crashed[1])
            replacements.append(UnitRestart(unit.name, reason, counted=False))
            result.append(unit.next_attempt())
        elif crashed is not None:
            reason = failure_reasons.termination_reason(crashed[0].name, crashed[1])
            counted = not any(is_exempt(pod) for _, pod in unit.current_pods)
            if counted and restarts >= budget:
                return RestartOutcome(
                    tuple(units), restarts, tuple(new), failure=_budget_exhausted(reason, budget)
                )
            restarts += counted
            new.append(UnitRestart(unit.name, reason, counted))
            result.append(unit.next_attempt())
        elif any(pod_state.is_terminating(pod) for _, pod in unit.current_pods) or (
            unit.is_gang and _is_incomplete_gang(unit, complete)
        ):
            # A pod was deleted from outside: its successor has another name, and the other ranks of a gang
            # would hang in their collectives forever.
            replacements.append(UnitRestart(unit.name, _loss_reason(unit), counted=False))
            result.append(unit.next_attempt())
        else:
            result.append(unit)
    return RestartOutcome(tuple(result), restarts, tuple(new), tuple(replacements))


def retain_until(attempt: int, pod: PodView) -> datetime | None:
    """Return the time until which a dead pod holds back its successor, as restart backoff; None: not at all.

    Args:
        attempt: Attempt of the successor.
    """
    if not pod_state.has_terminated(pod):
        return None
    # A pod that its node never ran has no finish time; its creation time is recent enough.
    finished = pod_state.finished_at(pod) or pod.created_at
    if finished is None:
        return None
    delay = restart_delay(attempt, pod_state.run_seconds(pod))
    try:
        return finished + timedelta(seconds=delay)
    except OverflowError:
        return None


def _first_crash(unit: ProcessUnit) -> tuple[Process, PodView] | None:
    """Return the first process of the unit that failed by itself."""
    crashed = [(process, pod) for process, pod in unit.current_pods if _has_crashed(unit, pod)]
    return min(crashed, key=_finish_time) if crashed else None


def _has_crashed(unit: ProcessUnit, pod: PodView) -> bool:
    is_done = unit.runs_to_completion and pod_state.exit_code(pod) == ExitCode.DONE
    return pod_state.has_terminated(pod) and not pod_state.is_terminating(pod) and not is_done


def is_exempt(pod: PodView) -> bool:
    """Return True when the pod's end spends no restart: neither the job nor its author can prevent it."""
    return pod_state.was_disrupted(pod) or pod_state.exit_code(pod) == ExitCode.STORAGE


def _loss_reason(unit: ProcessUnit) -> FailureReason:
    """Return why a unit restarts of which a pod is being deleted, or is gone."""
    for process, pod in unit.current_pods:
        if pod_state.is_terminating(pod):
            return failure_reasons.deletion_reason(process.name, pod)
    missing = ", ".join(member.process.name for member in unit.missing_members[:_MAX_NAMED])
    return FailureReason("Ending", f"the pod of {missing} was deleted")


def _finish_time(entry: tuple[Process, PodView]) -> float:
    finished = pod_state.finished_at(entry[1])
    return finished.timestamp() if finished is not None else float("inf")


def _is_incomplete_gang(unit: ProcessUnit, complete: frozenset[str]) -> bool:
    return unit.group in complete and bool(unit.current_pods) and bool(unit.missing_members)


def _budget_exhausted(reason: FailureReason, budget: int) -> FailureReason:
    text = f"all {budget} restarts are used up" if budget else "the job allows no restart"
    return replace(reason, message=f"{reason.message}; {text} (lifecycle.maxRestarts)")
