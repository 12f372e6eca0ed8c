"""Kueue's objects as the planner sees them: Workloads, ResourceFlavors and priority classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubealign.spec.sections.lifecycle import ManagedBy
from kubealign_operator.kube_views.lenient_json import get_path, integer, items, labels, mapping, text
from kubealign_operator.kube_views.ownership import owner_uid
from kubealign_operator.kube_views.topology import first_domain
from kubealign_operator.names import POD_SETS_ANNOTATION, UNIT_LABEL


@dataclass(frozen=True, slots=True)
class PodSetAssignment:
    """Quota that Kueue has reserved for one pod set.

    Attributes:
        count: Number of admitted pods.
        flavors: Names of the ResourceFlavors, one for each resource, without repetition.
        domain: Node labels of the first topology domain; None: the flavors have no topology.
    """

    name: str
    count: int
    flavors: tuple[str, ...] = ()
    domain: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Scheduling fields that an admission adds to pods, from a ResourceFlavor or an admission check.

    Attributes:
        pod_set: Pod set whose pods get the fields; empty: the pods of the flavor.
        tolerations: Kubernetes Tolerations as JSON.
    """

    pod_set: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    scheduling_gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """The relevant part of a Workload of the job."""

    name: str
    uid: str
    resource_version: str = ""
    generation: int | None = None
    #: uid of the AlignmentJob that controls the Workload; empty: none does.
    owner_uid: str = ""
    #: metadata.ownerReferences as JSON.
    owner_references: tuple[Mapping[str, Any], ...] = ()
    is_deleting: bool = False
    #: The unit of processes for which the Workload asks quota; empty: the job as a whole.
    unit: str = ""
    #: Digest of the desired pod sets, queue and priority with which the Workload was created.
    digest: str = ""
    #: spec.active: False means that an administrator has withdrawn the Workload from its queue.
    is_active: bool = True
    #: Name of a pod set -> number of its pods.
    pod_counts: Mapping[str, int] = field(default_factory=dict)
    #: status.conditions as JSON.
    conditions: tuple[Mapping[str, Any], ...] = ()
    #: Name of a pod set -> its reserved quota; empty without a reservation.
    assignments: Mapping[str, PodSetAssignment] = field(default_factory=dict)
    has_reservation: bool = False
    #: Fields that admission checks add to pods.
    pod_set_updates: tuple[PodPlacement, ...] = ()
    #: Name of a pod set -> number of its pods whose quota was given back.
    reclaimable: Mapping[str, int] = field(default_factory=dict)

    def condition(self, kind: str) -> Mapping[str, Any] | None:
        """Return the condition of this type; None: there is none."""
        return next((item for item in self.conditions if item.get("type") == kind), None)

    def is_true(self, kind: str) -> bool:
        condition = self.condition(kind)
        return condition is not None and condition.get("status") == "True"

    @property
    def has_controller(self) -> bool:
        """True if an object, of any kind, is the controller of the Workload."""
        return any(reference.get("controller") is True for reference in self.owner_references)

    @property
    def must_be_released(self) -> bool:
        """True if Kueue has evicted the Workload and waits for its owner to return the reservation."""
        return self.is_true("Evicted") and self.has_reservation

    @property
    def was_deactivated_by_kueue(self) -> bool:
        """True after a deactivation for a cause such as DeactivatedDueToRequeuingLimitExceeded."""
        requeued = mapping(self.condition("Requeued"))
        return requeued.get("status") == "False" and text(requeued.get("reason")).startswith(
            "DeactivatedDueTo"
        )

    def message(self, kind: str) -> str:
        """Return the message of a condition; empty: there is none."""
        return text(mapping(self.condition(kind)).get("message"))


@dataclass(frozen=True)
class KueueView:
    """Kueue's objects that concern one job.

    Attributes:
        workloads: Workloads whose labels name the job.
        flavors: Name of a ResourceFlavor -> what it adds to pods.
        workload_priorities: Name of a WorkloadPriorityClass -> its value.
        pod_priorities: Name of a PriorityClass -> its value.
    """

    workloads: tuple[WorkloadView, ...] = ()
    flavors: Mapping[str, PodPlacement] = field(default_factory=dict)
    workload_priorities: Mapping[str, int] = field(default_factory=dict)
    pod_priorities: Mapping[str, int] = field(default_factory=dict)


def workload_view(workload: Mapping[str, Any]) -> WorkloadView:
    """Parse a Workload from JSON; missing and malformed fields count as absent."""
    metadata, status = mapping(workload.get("metadata")), mapping(workload.get("status"))
    assignments = [_assignment(item) for item in items(get_path(status, "admission", "podSetAssignments"))]
    return WorkloadView(
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        resource_version=text(metadata.get("resourceVersion")),
        generation=integer(metadata.get("generation")),
        owner_uid=owner_uid(metadata) or "",
        owner_references=items(metadata.get("ownerReferences")),
        is_deleting=metadata.get("deletionTimestamp") is not None,
        unit=labels(metadata.get("labels")).get(UNIT_LABEL, ""),
        digest=labels(metadata.get("annotations")).get(POD_SETS_ANNOTATION, ""),
        is_active=get_path(workload, "spec", "active") is not False,
        pod_counts=_pod_counts(get_path(workload, "spec", "podSets")),
        conditions=items(status.get("conditions")),
        assignments={assignment.name: assignment for assignment in assignments},
        has_reservation=isinstance(status.get("admission"), Mapping),
        pod_set_updates=tuple(
            _pod_set_update(update)
            for check in items(status.get("admissionChecks"))
            for update in items(check.get("podSetUpdates"))
        ),
        reclaimable=_pod_counts(status.get("reclaimablePods")),
    )


def is_dispatched(job: Mapping[str, Any]) -> bool:
    """Return True if MultiKueue runs the job in another cluster, from which Kueue copies its status."""
    return text(get_path(job, "spec", "managedBy")) == ManagedBy.MULTIKUEUE


def flavor_view(flavor: Mapping[str, Any]) -> PodPlacement:
    """Parse a ResourceFlavor from JSON."""
    return PodPlacement(
        node_selector=labels(get_path(flavor, "spec", "nodeLabels")),
        tolerations=items(get_path(flavor, "spec", "tolerations")),
    )


def priority_value(priority_class: Mapping[str, Any]) -> int:
    """Return the value of a WorkloadPriorityClass or a PriorityClass; 0: it has none."""
    return integer(priority_class.get("value")) or 0


def _pod_counts(entries: object) -> dict[str, int]:
    """Return the numbers of pods by pod set."""
    return {text(item.get("name")): integer(item.get("count")) or 0 for item in items(entries)}


def _assignment(item: Mapping[str, Any]) -> PodSetAssignment:
    flavors = dict.fromkeys(labels(item.get("flavors")).values())
    topology = item.get("topologyAssignment")
    domain = first_domain(topology) if isinstance(topology, Mapping) else None
    return PodSetAssignment(text(item.get("name")), integer(item.get("count")) or 0, tuple(flavors), domain)


def _pod_set_update(update: Mapping[str, Any]) -> PodPlacement:
    return PodPlacement(
        pod_set=text(update.get("name")),
        node_selector=labels(update.get("nodeSelector")),
        tolerations=items(update.get("tolerations")),
        labels=labels(update.get("labels")),
        annotations=labels(update.get("annotations")),
    )
