"""Events about pods: why the operator deletes, stops or replaces each of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kubealign.spec.status import ConditionStatus, JobPhase
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.planner.failure_reasons import FailureReason
from kubealign_operator.planner.plan import (
    READY,
    Decision,
    KubeEventType,
    PlannedEvent,
    PodDeletion,
    PodReference,
    PodStop,
)
from kubealign_operator.planner.process_units import ProcessUnit
from kubealign_operator.planner.restart_policy import RestartOutcome

RESTARTED = "Restarted"
SUPERSEDED = "Superseded"
SCALED_DOWN = "ScaledDown"


def restart_causes(outcome: RestartOutcome, budget: int) -> Mapping[str, PlannedEvent]:
    """Return the event of each unit whose pods are replaced from now on.

    Args:
        budget: Restarts that the job allows.
    """
    return {
        restart.unit: PlannedEvent(
            KubeEventType.WARNING, RESTARTED, restart.describe(outcome.restarts, budget)
        )
        for restart in (*outcome.new_restarts, *outcome.replacements)
    }


def superseded(unit: ProcessUnit, pod: PodView) -> PlannedEvent:
    """Return the event of a pod of an earlier attempt."""
    message = f"attempt {unit.attempt} of {unit.name} replaces attempt {pod_state.attempt_of(pod)}"
    return PlannedEvent(KubeEventType.NORMAL, SUPERSEDED, message)


def failed_again(process: str) -> PlannedEvent:
    """Return the event of a failed pod that is no longer kept for its log."""
    message = f"{process} has failed again: only its last failed pod is kept"
    return PlannedEvent(KubeEventType.NORMAL, SUPERSEDED, message)


def scaled_down(process: str) -> PlannedEvent:
    """Return the event of a pod whose process the job no longer has."""
    message = f"{process} is no longer a process of the job, or runs in another pod"
    return PlannedEvent(KubeEventType.NORMAL, SCALED_DOWN, message)


def unadmitted(process: str) -> PlannedEvent:
    """Return the event of a rollout worker without a quota."""
    return PlannedEvent(KubeEventType.NORMAL, "Queued", f"{process} waits for its quota in a queue of Kueue")


def lost(reason: FailureReason) -> PlannedEvent:
    """Return the event of a pod that is deleted by force."""
    return PlannedEvent(KubeEventType.WARNING, reason.reason, reason.message)


def about(pod: PodView | PodDeletion | PodStop, cause: PlannedEvent) -> PlannedEvent:
    """Return the event about this pod."""
    return replace(cause, pod=PodReference(pod.name, pod.uid))


def pod_events(decision: Decision, deletions: Iterable[PodDeletion]) -> tuple[PlannedEvent, ...]:
    """Return one event for each pod that is replaced, deleted or stopped.

    Args:
        deletions: The deletions of the decision, one for each pod. The cause of one that has none of its own
            is that of the whole decision.
    """
    common = _decision_cause(decision)
    events = [
        *decision.pod_events,
        *(about(deletion, deletion.cause or common) for deletion in deletions),
        *(about(stop, common) for stop in decision.stop),
    ]
    return tuple({event.pod: event for event in reversed(events)}.values())[::-1]


def _decision_cause(decision: Decision) -> PlannedEvent:
    """Return why the pods of a job go, in the words of its condition Ready or its phase."""
    for reason, message in _explanations(decision):
        if message:
            kind = KubeEventType.WARNING if decision.phase is JobPhase.FAILED else KubeEventType.NORMAL
            return PlannedEvent(kind, reason, message)
    return PlannedEvent(KubeEventType.NORMAL, decision.phase.value, f"the job is {decision.phase.value}")


def _explanations(decision: Decision) -> Iterator[tuple[str, str]]:
    for condition in decision.conditions:
        if condition.type == READY and condition.status is ConditionStatus.FALSE:
            yield condition.reason, condition.message
    yield decision.phase.value, decision.message
