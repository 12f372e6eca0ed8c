"""What starts and restarts as one: the ranks of a group or of a worker, or a single process, and the pods
that there are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kubealign.roles import Process
from kubealign_operator.render import names, pod_state
from kubealign_operator.render.observed import PodView


@dataclass(frozen=True)
class Member:
    """A process and its pod, if there is one. `foreign`: a pod of its name that is not this job's."""

    process: Process
    pod_name: str
    pod: PodView | None = None
    foreign: bool = False


@dataclass(frozen=True)
class Unit:
    """`attempt`: how often it was started again; a pod of an earlier attempt is a remainder."""

    name: str
    attempt: int
    members: tuple[Member, ...]

    @property
    def group(self) -> str:
        return self.members[0].process.group

    @property
    def ranks(self) -> bool:
        """Its processes meet in collectives: one that is lost takes the others with it."""
        return len(self.members) > 1

    @property
    def one_shot(self) -> bool:
        return self.members[0].process.one_shot

    @property
    def current(self) -> list[tuple[Process, PodView]]:
        return [(process, pod) for process, pod in self._pods() if self._is_current(pod)]

    @property
    def stale(self) -> list[tuple[Process, PodView]]:
        return [(process, pod) for process, pod in self._pods() if not self._is_current(pod)]

    @property
    def missing(self) -> list[Member]:
        return [member for member in self.members if member.pod is None]

    @property
    def ready(self) -> int:
        """Processes that serve; of a one-shot, those that are done."""
        return sum(self._serves(pod) for _, pod in self.current)

    @property
    def counts(self) -> tuple[int, int]:
        """(wanted, ready) of what a person counts: workers where there may be more or fewer of them, else
        processes."""
        if self.members[0].process.elastic:
            return 1, int(self.ready == len(self.members))
        return len(self.members), self.ready

    def again(self) -> "Unit":
        """Every pod that there is now becomes a remainder."""
        return Unit(self.name, self.attempt + 1, self.members)

    def _pods(self) -> Iterable[tuple[Process, PodView]]:
        return ((member.process, member.pod) for member in self.members if member.pod is not None)

    def _is_current(self, pod: PodView) -> bool:
        return pod_state.attempt(pod) >= self.attempt

    def _serves(self, pod: PodView) -> bool:
        return pod_state.exit_code(pod) == 0 if self.one_shot else pod_state.ready(pod)


def units(
    job: str,
    uid: str,
    processes: Sequence[Process],
    pods: Iterable[PodView],
    attempts: Mapping[str, int],
) -> tuple[Unit, ...]:
    """In the order of the processes. `attempts`: by the unit's name; none is 0.

    A pod of a later attempt than the status tells of means that the status is old, not the pod."""
    by_name = {pod.name: pod for pod in pods}
    grouped: dict[str, list[Member]] = {}
    for process in processes:
        grouped.setdefault(process.unit, []).append(_member(job, uid, process, by_name))
    return tuple(
        Unit(name, max(attempts.get(name, 0), *map(_attempt, members)), tuple(members))
        for name, members in grouped.items()
    )


def _attempt(member: Member) -> int:
    return 0 if member.pod is None else pod_state.attempt(member.pod)


def own(pod: PodView, uid: str) -> bool:
    return bool(uid) and pod.labels.get(names.UID_LABEL) == uid


def _member(job: str, uid: str, process: Process, pods: Mapping[str, PodView]) -> Member:
    name = names.pod(job, process.name)
    held = pods.get(name)
    if held is None or own(held, uid):
        return Member(process, name, held)
    return Member(process, name, foreign=True)
