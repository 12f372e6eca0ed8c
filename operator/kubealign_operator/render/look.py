"""A snapshot of one job: the observed state, parsed once, on which the phases decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kubealign.process import Role
from kubealign.roles import Process
from kubealign.spec.status import AlignmentJobStatus
from kubealign_operator.render import names, pod_state
from kubealign_operator.render.observed import Observed, PodView
from kubealign_operator.render.past import past
from kubealign_operator.render.platform import Platform
from kubealign_operator.render.reading import inside, mapping, text, whole
from kubealign_operator.render.units import Unit, own, units


@dataclass(frozen=True)
class Look:
    """The parsed state of one job. `processes` starts with the message bus."""

    name: str
    namespace: str
    uid: str
    generation: int | None
    #: The job itself is being deleted.
    leaving: bool
    past: AlignmentJobStatus
    now: datetime
    processes: tuple[Process, ...]
    #: Pods that belong to the job.
    pods: tuple[PodView, ...]
    observed: Observed
    platform: Platform

    @property
    def stamp(self) -> datetime:
        """The current time in whole seconds, as Kubernetes writes times."""
        return self.now.replace(microsecond=0)

    @property
    def step(self) -> int | None:
        """The last completed step."""
        progress = self.observed.progress
        return self.past.step if progress is None or progress.step is None else progress.step

    @property
    def started(self) -> bool:
        return self.past.start_time is not None

    def pods_of(self, group: str) -> list[PodView]:
        return [pod for pod in self.pods if pod.labels.get(names.GROUP_LABEL) == group]

    def firsts_of(self, group: str) -> list[PodView]:
        """Return the pods of rank 0 in a group: one for each worker that consists of several pods."""
        return [pod for pod in self.pods_of(group) if pod.labels.get(names.WORKER_RANK_LABEL, "0") == "0"]

    def units(self, attempts: Mapping[str, int] | None) -> tuple[Unit, ...]:
        return units(self.name, self.uid, self.processes, self.observed.pods, attempts or {})

    def process_of(self, pod: PodView) -> str:
        """Return the name of the process that a pod of the job runs."""
        return pod.labels.get(names.PROCESS_LABEL) or pod.name


def look(processes: Sequence[Process], observed: Observed, now: datetime, platform: Platform) -> Look:
    """Take a snapshot of the observed state. `now` has a time zone."""
    metadata = mapping(observed.job.get("metadata"))
    uid = text(metadata.get("uid"))
    others = [process for process in processes if process.role is not Role.NATS]
    return Look(
        name=text(metadata.get("name")),
        namespace=text(metadata.get("namespace")) or "default",
        uid=uid,
        generation=whole(metadata.get("generation")),
        leaving=metadata.get("deletionTimestamp") is not None,
        past=past(inside(observed.job, "status")),
        now=now.astimezone(UTC),
        processes=(names.bus(), *others),
        pods=tuple(pod for pod in observed.pods if own(pod, uid)),
        observed=observed,
        platform=platform,
    )


def living(pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods whose processes may still run."""
    return [pod for pod in pods if not pod_state.ended(pod)]
