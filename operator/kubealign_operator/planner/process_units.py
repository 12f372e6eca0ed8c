"""Units that start and restart together (the ranks of a group or of a worker, or a single process) with their
pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kubealign.role_specs import StartStage
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView


@dataclass(frozen=True)
class UnitMember:
    """A process of a unit and its pod, if any. `is_foreign`: a pod of that name belongs to something else."""

    process: Process
    pod_name: str
    pod: PodView | None = None
    is_foreign: bool = False


@dataclass(frozen=True)
class ProcessUnit:
    """Processes that start and restart together.

    Args:
        attempt: Number of restarts so far. Pods of earlier attempts are stale.
    """

    name: str
    attempt: int
    members: tuple[UnitMember, ...]

    @property
    def group(self) -> str:
        return self.members[0].process.group

    @property
    def start(self) -> StartStage:
        return self.members[0].process.role_spec.start

    @property
    def is_gang(self) -> bool:
        """True when the processes form a gang that runs collectives: losing one rank loses all."""
        return len(self.members) > 1

    @property
    def runs_to_completion(self) -> bool:
        return self.members[0].process.one_shot

    @property
    def current_pods(self) -> list[tuple[Process, PodView]]:
        return [(process, pod) for process, pod in self._pods() if self._is_current(pod)]

    @property
    def stale_pods(self) -> list[tuple[Process, PodView]]:
        return [(process, pod) for process, pod in self._pods() if not self._is_current(pod)]

    @property
    def missing_members(self) -> list[UnitMember]:
        return [member for member in self.members if member.pod is None]

    @property
    def ready_count(self) -> int:
        """Number of ready processes; for a unit that runs to completion, of finished ones."""
        return sum(self._is_ready(pod) for _, pod in self.current_pods)

    @property
    def replica_counts(self) -> tuple[int, int]:
        """(desired, ready) counts as shown in the status: workers for elastic groups, else processes."""
        if self.members[0].process.elastic:
            return 1, int(self.ready_count == len(self.members))
        return len(self.members), self.ready_count

    def next_attempt(self) -> "ProcessUnit":
        """Return the unit's next attempt: every existing pod becomes stale."""
        return ProcessUnit(self.name, self.attempt + 1, self.members)

    def _pods(self) -> Iterable[tuple[Process, PodView]]:
        return ((member.process, member.pod) for member in self.members if member.pod is not None)

    def _is_current(self, pod: PodView) -> bool:
        return pod_state.attempt_of(pod) >= self.attempt

    def _is_ready(self, pod: PodView) -> bool:
        return pod_state.exit_code(pod) == 0 if self.runs_to_completion else pod_state.is_ready(pod)


def build_units(
    job: str,
    uid: str,
    processes: Sequence[Process],
    pods: Iterable[PodView],
    attempts: Mapping[str, int],
) -> tuple[ProcessUnit, ...]:
    """Group the processes into units, in the order of the processes.

    A pod of a later attempt than the status records means that the status is old, not the pod.

    Args:
        attempts: Number of restarts by unit name; an absent unit counts as 0.
    """
    by_name = {pod.name: pod for pod in pods}
    grouped: dict[str, list[UnitMember]] = {}
    for process in processes:
        grouped.setdefault(process.unit, []).append(_member(job, uid, process, by_name))
    return tuple(
        ProcessUnit(name, max(attempts.get(name, 0), *map(_attempt, members)), tuple(members))
        for name, members in grouped.items()
    )


def _attempt(member: UnitMember) -> int:
    return 0 if member.pod is None else pod_state.attempt_of(member.pod)


def belongs_to(pod: PodView, uid: str) -> bool:
    """Return True when the job of this uid controls the pod; a pod of others may have the same labels."""
    return bool(uid) and pod.owner_uid == uid


def _member(job: str, uid: str, process: Process, pods: Mapping[str, PodView]) -> UnitMember:
    name = names.pod(job, process.name)
    view = pods.get(name)
    if view is None or belongs_to(view, uid):
        return UnitMember(process, name, view)
    return UnitMember(process, name, is_foreign=True)
