"""A snapshot of one job: the observed state, parsed once, on which the phases decide."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from kubealign.labels import PREBUILT_WORKLOAD_LABEL, RENEW_CREDENTIALS_ANNOTATION, RETRY_ANNOTATION
from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign.spec.status import AlignmentJobStatus
from kubealign_operator import names
from kubealign_operator.kube_views import pod_state
from kubealign_operator.kube_views.lenient_json import get_path, integer, mapping, text
from kubealign_operator.kube_views.observed_job import ObservedState, PodView
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.pod_layout import arrange_pods
from kubealign_operator.planner.kept_pods import kept_pods
from kubealign_operator.planner.previous_status import parse_previous_status
from kubealign_operator.planner.process_units import ProcessUnit, belongs_to, build_units

#: Longest value of the fields status.retry and status.credentials.renewalRequest.
_MAX_REQUEST_LENGTH = 256


@dataclass(frozen=True)
class JobSnapshot:
    """The parsed state of one job.

    `processes` has the first process of each pod, with the others as companions; it starts with the bus.
    """

    name: str
    namespace: str
    uid: str
    generation: int | None
    #: The job itself is being deleted.
    is_deleting: bool
    previous_status: AlignmentJobStatus
    now: datetime
    processes: tuple[Process, ...]
    #: Pods that belong to the job.
    pods: tuple[PodView, ...]
    #: Names of those pods that have failed and are kept for their logs only.
    kept_pods: frozenset[str]
    observed: ObservedState
    platform: Platform

    @property
    def timestamp(self) -> datetime:
        """The current time in whole seconds, as Kubernetes writes times."""
        return self.now.replace(microsecond=0)

    @property
    def step(self) -> int | None:
        """The last completed step."""
        progress = self.observed.progress
        return self.previous_status.step if progress is None or progress.step is None else progress.step

    @property
    def force_deletes_lost_pods(self) -> bool:
        """True if the job allows forced deletion, also when the rest of its spec is invalid."""
        return get_path(self.observed.job, "spec", "lifecycle", "forceDeleteLostPods") is True

    @property
    def retry_annotation(self) -> str:
        """The value that requests a retry, cut to what status.retry records; empty: none."""
        return self._request(RETRY_ANNOTATION)

    @property
    def renewal_annotation(self) -> str:
        """The value that requests new credentials, cut to what the status records; empty: none."""
        return self._request(RENEW_CREDENTIALS_ANNOTATION)

    @property
    def prebuilt_workload(self) -> str:
        """The Workload that MultiKueue has created for the job of another cluster; empty: none."""
        return text(get_path(self.observed.job, "metadata", "labels", PREBUILT_WORKLOAD_LABEL))

    @property
    def has_started(self) -> bool:
        return self.previous_status.start_time is not None

    def _request(self, annotation: str) -> str:
        value = get_path(self.observed.job, "metadata", "annotations", annotation)
        return text(value)[:_MAX_REQUEST_LENGTH]

    @property
    def remaining_pods(self) -> list[PodView]:
        """Pods whose processes may still run, or whose deletion is not complete: no leftovers."""
        return [pod for pod in self.pods if not pod_state.is_leftover(pod)]

    @cached_property
    def taken_names(self) -> frozenset[str]:
        """Names of all pods with the job's labels, whoever owns them."""
        return frozenset(pod.name for pod in self.observed.pods)

    def pods_in_group(self, group: str) -> list[PodView]:
        return [pod for pod in self.pods if pod.labels.get(names.GROUP_LABEL) == group]

    def first_rank_pods(self, group: str) -> list[PodView]:
        """Return the pods of rank 0 in a group: one for each worker that consists of several pods."""
        return [
            pod for pod in self.pods_in_group(group) if pod.labels.get(names.WORKER_RANK_LABEL, "0") == "0"
        ]

    def units(self, attempts: Mapping[str, int] | None) -> tuple[ProcessUnit, ...]:
        return build_units(
            self.name,
            self.uid,
            self.processes,
            self.observed.pods,
            attempts or {},
            self.kept_pods,
        )

    def process_name(self, pod: PodView) -> str:
        """Return the name of the process that a pod of the job runs."""
        return pod.labels.get(names.PROCESS_LABEL) or pod.name


def take_snapshot(
    processes: Sequence[Process],
    observed: ObservedState,
    now: datetime,
    platform: Platform,
    pod_size: Callable[[Process], int] = lambda process: 1,
) -> JobSnapshot:
    """Take a snapshot of the observed state.

    Args:
        processes: Processes of the job, each by itself.
        now: Current time, with a time zone.
        pod_size: Returns the number of ranks for each pod of a process's unit.
    """
    metadata = mapping(observed.job.get("metadata"))
    uid = text(metadata.get("uid"))
    others = [process for process in processes if process.role is not Role.NATS]
    pods = tuple(pod for pod in observed.pods if belongs_to(pod, uid))
    previous_status = parse_previous_status(get_path(observed.job, "status"))
    kept_names = kept_pods((names.bus(), *others), pods, previous_status.attempts or {}, now)
    counted = [pod for pod in pods if pod.name not in kept_names]
    return JobSnapshot(
        name=text(metadata.get("name")),
        namespace=text(metadata.get("namespace")) or "default",
        uid=uid,
        generation=integer(metadata.get("generation")),
        is_deleting=metadata.get("deletionTimestamp") is not None,
        previous_status=previous_status,
        now=now.astimezone(UTC),
        processes=(names.bus(), *arrange_pods(others, counted, pod_size)),
        pods=pods,
        kept_pods=kept_names,
        observed=observed,
        platform=platform,
    )


def live_pods(pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods whose processes may still run."""
    return [pod for pod in pods if not pod_state.has_terminated(pod)]
