"""Units that start and restart together (the ranks of a group or of a worker, or a single process) with their
pods.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kubealign.role_specs import StartStage
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.observed_job import PodView


@dataclass(frozen=True)
class UnitMember:
    """A process of a unit and its pods. Other ranks in the same pod are its companions.

    Args:
        pod: The newest pod that may still run or has just ended; None: there is none.
        leftovers: Deleted pods of earlier attempts that only finalizers keep.
        duplicates: Older pods that may still run.
        kept_pods: Failed pods of earlier attempts that are kept for their logs, oldest first.
    """

    process: Process
    pod: PodView | None = None
    leftovers: tuple[PodView, ...] = ()
    duplicates: tuple[PodView, ...] = ()
    kept_pods: tuple[PodView, ...] = ()

    @property
    def first_attempt(self) -> int:
        """The first attempt that the process's pods allow: that of its pod, or one above an ended one."""
        current = [] if self.pod is None else [pod_state.attempt_of(self.pod)]
        ended = (*self.leftovers, *self.kept_pods)
        return max([0, *current, *(pod_state.attempt_of(pod) + 1 for pod in ended)])


@dataclass(frozen=True)
class ProcessUnit:
    """Processes that start and restart together.

    Args:
        job: Name of the job.
        attempt: Number of restarts so far. Pods of earlier attempts are stale.
    """

    job: str
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
        stale = [(process, pod) for process, pod in self._pods() if not self._is_current(pod)]
        return stale + [(member.process, pod) for member in self.members for pod in member.duplicates]

    @property
    def leftover_pods(self) -> list[PodView]:
        """Ended pods of earlier attempts that finalizers keep: a successor does not wait for them."""
        return [pod for member in self.members for pod in member.leftovers]

    @property
    def missing_members(self) -> list[UnitMember]:
        return [member for member in self.members if member.pod is None]

    @property
    def process_count(self) -> int:
        return sum(len(member.process.pod_processes) for member in self.members)

    @property
    def ready_count(self) -> int:
        """Number of ready processes; for a unit that runs to completion, of finished ones."""
        ready = (process for process, pod in self.current_pods if self._is_ready(pod))
        return sum(len(process.pod_processes) for process in ready)

    @property
    def replica_counts(self) -> tuple[int, int]:
        """(desired, ready) counts as shown in the status: workers for elastic groups, else processes."""
        if self.members[0].process.elastic:
            return 1, int(self.ready_count == self.process_count)
        return self.process_count, self.ready_count

    def next_attempt(self) -> "ProcessUnit":
        """Return the unit's next attempt: every existing pod becomes stale."""
        return replace(self, attempt=self.attempt + 1)

    def pod_name(self, member: UnitMember) -> str:
        """Return the name of the member's pod of this attempt."""
        return names.pod(self.job, member.process.name, self.attempt)

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
    kept_names: frozenset[str] = frozenset(),
) -> tuple[ProcessUnit, ...]:
    """Group the processes into units, in the order of the processes.

    Pods are recognised by label: those of an operator of an earlier version have names without an attempt.
    A pod of a later attempt than the status records means that the status is old, not the pod.

    Args:
        attempts: Number of restarts by unit name; an absent unit counts as 0.
        kept_names: Names of the failed pods that are kept for their logs only.
    """
    by_process: defaultdict[str, list[PodView]] = defaultdict(list)
    for pod in pods:
        if belongs_to(pod, uid):
            by_process[pod.labels.get(names.PROCESS_LABEL, "")].append(pod)
    grouped: dict[str, list[UnitMember]] = {}
    for process in processes:
        grouped.setdefault(process.unit, []).append(_member(process, by_process[process.name], kept_names))
    return tuple(
        ProcessUnit(
            job,
            name,
            max(attempts.get(name, 0), *(member.first_attempt for member in members)),
            tuple(members),
        )
        for name, members in grouped.items()
    )


def belongs_to(pod: PodView, uid: str) -> bool:
    """Return True when the job of this uid controls the pod; a pod of others may have the same labels."""
    return bool(uid) and pod.owner_uid == uid


def _member(process: Process, pods: Sequence[PodView], kept_names: frozenset[str]) -> UnitMember:
    ordered = sorted(pods, key=lambda pod: (pod_state.attempt_of(pod), pod.name))
    leftovers = tuple(pod for pod in pods if pod_state.is_leftover(pod))
    kept_pods = tuple(pod for pod in ordered if pod.name in kept_names)
    others = [pod for pod in ordered if pod.name not in kept_names and not pod_state.is_leftover(pod)]
    return UnitMember(process, others[-1] if others else None, leftovers, tuple(others[:-1]), kept_pods)
