"""Workload that MultiKueue has created, in a worker cluster, for the job that it has copied there.

The label kueue.x-k8s.io/prebuilt-workload-name of the copy names it. The operator makes the job its
controller and follows its admission. Its spec belongs to the cluster from which the job came: MultiKueue
deletes job and Workload where the spec has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kubealign.process_settings import Role
from kubealign_operator.kube_views.kueue_view import WorkloadView
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import owner_reference
from kubealign_operator.manifests.workload import PodSet, digest_of, priority_reference, workload
from kubealign_operator.planner.plan import WorkloadAdoption
from kubealign_operator.planner.snapshot import JobSnapshot


def adopt_workload(snapshot: JobSnapshot) -> tuple[WorkloadAdoption, ...]:
    """Make the job the controller of its prebuilt Workload, unless the Workload has a controller."""
    return tuple(
        WorkloadAdoption(
            view.name,
            view.uid,
            view.resource_version,
            (*view.owner_references, owner_reference(snapshot.name, snapshot.uid)),
        )
        for view in snapshot.observed.kueue.workloads
        if view.name == snapshot.prebuilt_workload and not view.has_controller and not view.is_deleting
    )


def unusable_reason(name: str, view: WorkloadView | None, uid: str) -> str:
    """Return why the job with this uid does not use its prebuilt Workload; empty: it does.

    Args:
        name: Name of the Workload.
        view: The Workload; None: it does not exist.
    """
    if view is None:
        return f"waits for Workload {name}, which MultiKueue creates"
    if not view.has_controller:
        return f"takes over Workload {name}"
    if view.owner_uid != uid:
        return f"waits for the deletion of Workload {name}, which belongs to another job"
    return ""


def pod_set_mismatch(context: RenderContext, sets: Sequence[PodSet], view: WorkloadView) -> str:
    """Return why the prebuilt Workload was made for other pods than those of the job; empty: it was not.

    The number of rollout workers may differ: it can be changed while the job waits.
    """
    counts = {
        pod_set.name: view.pod_counts.get(pod_set.name, pod_set.count)
        if Role.ROLLOUT in pod_set.groups
        else pod_set.count
        for pod_set in sets
    }
    comparable = [replace(pod_set, count=counts[pod_set.name]) for pod_set in sets]
    if digest_of(workload(context, comparable, priority_reference(context, sets))) == view.digest:
        return ""
    detail = "their resources, scheduling fields, queue or priority class differ"
    if counts != view.pod_counts:
        detail = f"it asks for {_listed(view.pod_counts)}, and the job needs {_listed(counts)} here"
    return (
        f"Workload {view.name} was made for other pods: {detail}. Both clusters need the same version of "
        "kubealign, and the same pod templates, profiles and default resources in its Helm chart"
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items()))
