"""Kueue's answer for a job: its Workloads, and the pods that they cover.

A job asks with one Workload for all of its pods, and has no pod before Kueue has admitted it. Of the rollout
workers above `minReplicas` Kueue may admit a part. The others, and those that are added later, ask with a
Workload each. A job that MultiKueue has copied from another cluster uses the Workload that MultiKueue has
created for it, and no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import DependencyResult, ResultLocation
from kubealign_operator.kube_views.kueue_view import KueueView, PodPlacement, WorkloadView
from kubealign_operator.kube_views.topology import TopologyInvalid
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.host_ports import assign_host_ports
from kubealign_operator.manifests.pod import build_pod
from kubealign_operator.manifests.pod_placement import admission_placement, topology_placement
from kubealign_operator.manifests.pod_templates import uses_host_network
from kubealign_operator.manifests.workload import (
    WORKLOAD_PRIORITY_CLASS,
    PodSet,
    TooManyPodSets,
    WorkloadPriority,
    pod_set_of,
    pod_sets,
    priority_reference,
    queue_of,
    workload,
)
from kubealign_operator.planner.admission.prebuilt_workload import pod_set_mismatch, unusable_reason
from kubealign_operator.planner.admission.workload_status import (
    ADMITTED,
    EVICTED,
    FINISHED,
    QUOTA_RESERVED,
)
from kubealign_operator.planner.snapshot import JobSnapshot


@dataclass(frozen=True)
class JobAdmission:
    """Kueue's answer for a queued job.

    Attributes:
        problem: Reason why the job cannot ask for quota; empty: it can.
        sets: Pod sets of the job; empty where they are too many.
        manifest: Workload that the job needs as a whole; empty where there is a problem.
        main: Existing Workload of the job as a whole; None: there is none.
        workers: Name of a rollout worker -> its own Workload.
        prebuilt: Name of the Workload that MultiKueue has created for the job; empty: the operator creates
            Workloads.
        unusable: Reason why the job does not use the prebuilt Workload; empty: it does.
        mismatch: Reason why the prebuilt Workload will never fit the job; empty: it does.
    """

    context: RenderContext
    kueue: KueueView
    queue: str
    problem: str = ""
    sets: tuple[PodSet, ...] = ()
    priority: WorkloadPriority | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    main: WorkloadView | None = None
    workers: Mapping[str, WorkloadView] = field(default_factory=dict)
    prebuilt: str = ""
    unusable: str = ""
    mismatch: str = ""

    @property
    def reason(self) -> str:
        """Reason of the job's condition Admitted, one word."""
        if not self.obstacle:
            return "Admitted"
        main = self.main
        if main is not None and main.must_be_released:
            return "Evicted"
        return "Inactive" if main is not None and not main.is_active else "Queued"

    @property
    def obstacle(self) -> str:
        """Reason why the job has no quota; empty: it has.

        A job that runs keeps its quota until Kueue evicts it, also where it could not ask again.
        """
        main = self.main
        if self.unusable or self.mismatch:
            return self.unusable or self.mismatch
        if main is not None and is_admitted(main):
            return ""
        if self.problem:
            return self.problem
        if main is None:
            return f"waits in queue {self.queue} of Kueue"
        if main.is_deleting or main.is_true(FINISHED):
            return f"waits for the deletion of Workload {main.name}"
        if main.must_be_released:
            cause = main.message(EVICTED).rstrip(".") or "no reason was given"
            return f"evicted from queue {self.queue} of Kueue: {cause}"
        if not main.is_active:
            return f"waits until spec.active of Workload {main.name} is true"
        detail = main.message(QUOTA_RESERVED)
        if main.is_true(QUOTA_RESERVED):
            detail = main.message(ADMITTED) or "its admission checks have not passed"
        return f"waits in queue {self.queue} of Kueue" + (f": {detail}" if detail else "")

    def covered_workers(self, pods_per_worker: int) -> int:
        """Return the number of rollout workers that the quota of the job as a whole covers."""
        main, name = self.main, self.rollout_set
        assignment = None if main is None else main.assignments.get(name)
        if main is None or assignment is None:
            return 0
        # Kueue subtracts from the pods that were asked for, not from those that were admitted.
        needed = main.pod_counts.get(name, assignment.count) - main.reclaimable.get(name, 0)
        return max(0, min(assignment.count, needed)) // pods_per_worker

    def worker_manifest(self, unit: str, members: Sequence[Process]) -> Mapping[str, Any]:
        """Return the Workload with which one rollout worker asks for quota."""
        only = replace(pod_set_of(members[0], self.sets), count=len(members), min_count=None)
        return workload(self.context, [only], self.priority, unit)

    def placements(self, process: Process) -> tuple[PodPlacement, ...]:
        """Return the scheduling fields that Kueue's answer adds to the pod of a process.

        Raises:
            UnknownFlavor: The pod's set, or a ResourceFlavor of its assignment, does not exist.
        """
        if not self.sets:
            raise UnknownFlavor(self.problem)
        view = self.workers.get(process.unit) or self.main
        if view is None:
            return ()
        pod_set = pod_set_of(process, self.sets)
        name = pod_set.name
        assignment = view.assignments.get(name)
        flavors = () if assignment is None else assignment.flavors
        missing = [flavor for flavor in flavors if flavor not in self.kueue.flavors]
        if missing:
            raise UnknownFlavor(f"ResourceFlavor {missing[0]}, which Kueue has assigned, does not exist")
        updates = tuple(update for update in view.pod_set_updates if update.pod_set == name)
        assigned = tuple(self.kueue.flavors[flavor] for flavor in flavors)
        placements = (*assigned, *updates, admission_placement(view.name, name))
        if assignment is None or assignment.domain is None:
            return placements
        return (*placements, topology_placement(pod_set, assignment.domain))

    @property
    def rollout_set(self) -> str:
        """Name of the pod set of the rollout workers."""
        return next((each.name for each in self.sets if Role.ROLLOUT in each.groups), Role.ROLLOUT.value)


class UnknownFlavor(LookupError):
    """A ResourceFlavor that Kueue has assigned does not exist."""


def is_admitted(view: WorkloadView) -> bool:
    """Return True if the pods of the Workload may run."""
    return (
        view.has_reservation
        and view.is_true(ADMITTED)
        and view.is_active
        and not view.is_true(EVICTED)
        and not view.is_true(FINISHED)
        and not view.is_deleting
    )


def main_workload(snapshot: JobSnapshot) -> WorkloadView | None:
    """Return the existing Workload of the job as a whole; None: there is none."""
    name = snapshot.prebuilt_workload
    if name:
        return next((view for view in snapshot.observed.kueue.workloads if view.name == name), None)
    return next((view for view in own_workloads(snapshot) if not view.unit), None)


def own_workloads(snapshot: JobSnapshot) -> tuple[WorkloadView, ...]:
    """Return the Workloads that the job controls."""
    return tuple(
        view for view in snapshot.observed.kueue.workloads if view.owner_uid == snapshot.uid and snapshot.uid
    )


def render_context(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    dependencies: Sequence[DependencyResult],
    checkpoint_source: ResultLocation | None,
    credentials_generation: int = 1,
    document_generation: int = 1,
) -> RenderContext:
    """Return the context from which the manifests of the job are built.

    A job keeps the image with which it started: its processes speak with one another.
    """
    image = snapshot.previous_status.image or snapshot.platform.image
    uses_node = partial(uses_host_network, snapshot.platform, job.spec)
    return RenderContext(
        snapshot.name,
        snapshot.namespace,
        snapshot.uid,
        job,
        replace(snapshot.platform, image=image),
        tuple(dependencies),
        checkpoint_source,
        credentials_generation,
        document_generation,
        assign_host_ports(snapshot.uid, snapshot.processes, uses_node),
    )


def job_admission(
    snapshot: JobSnapshot,
    job: AlignmentJob,
    dependencies: Sequence[DependencyResult],
    checkpoint_source: ResultLocation | None,
) -> JobAdmission | None:
    """Return Kueue's answer for the job; None: no queue admits it."""
    context = render_context(snapshot, job, dependencies, checkpoint_source)
    queue, prebuilt = queue_of(context), snapshot.prebuilt_workload
    if not snapshot.platform.uses_kueue or not (queue or prebuilt):
        return None
    kueue, main = snapshot.observed.kueue, main_workload(snapshot)
    workers = {view.unit: view for view in own_workloads(snapshot) if view.unit}
    known = JobAdmission(context, kueue, queue, main=main, workers=workers, prebuilt=prebuilt)
    try:
        sets = pod_sets(context, snapshot.processes, lambda process: build_pod(context, process, 0))
    except (TooManyPodSets, TopologyInvalid) as error:
        return replace(known, problem=str(error), mismatch=str(error) if prebuilt else "")
    if prebuilt:
        unusable = unusable_reason(prebuilt, main, snapshot.uid)
        # A job that has started goes on: its cluster's settings may have changed since.
        mismatch = "" if main is None or snapshot.has_started else pod_set_mismatch(context, sets, main)
        return replace(known, sets=sets, unusable=unusable, mismatch=mismatch)
    try:
        priority = _priority(context, sets, kueue)
    except UnknownPriorityClass as error:
        return replace(known, problem=str(error), sets=sets)
    return replace(known, sets=sets, priority=priority, manifest=workload(context, sets, priority))


class UnknownPriorityClass(LookupError):
    """The priority class of a job does not exist."""


def _priority(context: RenderContext, sets: Sequence[PodSet], kueue: KueueView) -> WorkloadPriority | None:
    """Return the priority of the job with the value of its class; None: it has none."""
    priority = priority_reference(context, sets)
    if priority is None:
        return None
    if priority.kind == WORKLOAD_PRIORITY_CLASS:
        values, named_by = kueue.workload_priorities, "the job's label names it"
    else:
        values, named_by = kueue.pod_priorities, "a pod template names it"
    if priority.name not in values:
        raise UnknownPriorityClass(
            f"waits for {priority.kind} {priority.name}: {named_by}, and it does not exist"
        )
    return replace(priority, value=values[priority.name])
