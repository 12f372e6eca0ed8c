"""Caches of Kueue's objects: the Workloads of jobs, ResourceFlavors and priority classes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from kubealign.kube.reflector import ObjectStore, Scope
from kubealign.kube.resources import (
    PRIORITY_CLASSES,
    RESOURCE_FLAVORS,
    WORKLOAD_PRIORITY_CLASSES,
    WORKLOADS,
    resource_version,
)
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.state.cache import OnChange, OwnedStore
from kubealign_operator.kube_views.kueue_view import (
    KueueView,
    flavor_view,
    priority_value,
    workload_view,
)
from kubealign_operator.names import OWNED_SELECTOR

Json = dict[str, Any]
View = TypeVar("View")


class ClusterObjects(Generic[View]):
    """Cache of the views of cluster-wide objects of one kind, by name. `on_change`: called for a change."""

    def __init__(self, build: Callable[[Json], View], on_change: Callable[[], None]) -> None:
        self._build = build
        self._on_change = on_change
        self._objects: dict[str, tuple[int, str, View]] = {}

    def views(self) -> Mapping[str, View]:
        return {name: view for name, (_, _, view) in self._objects.items()}

    def put(self, item: Json) -> None:
        metadata = item["metadata"]
        version, view = resource_version(metadata), self._build(item)
        before = self._objects.get(metadata["name"])
        if before is not None and version <= before[0]:
            return
        self._objects[metadata["name"]] = version, str(metadata["uid"]), view
        if before is None or before[2] != view:
            self._on_change()

    def remove(self, item: Json) -> None:
        if self._objects.pop(item["metadata"]["name"], None) is not None:
            self._on_change()

    def sweep(self, namespace: str | None, uids: set[str], listed_version: int) -> None:
        for name, (version, uid, _) in list(self._objects.items()):
            if version <= listed_version and uid not in uids:
                del self._objects[name]
                self._on_change()

    def advance_to(self, namespace: str | None, version: int) -> None:
        """Ignore the version: no write of the operator changes these objects."""


class KueueObjects:
    """Kueue's objects as far as jobs depend on them.

    Args:
        on_change: Called for the job of a changed Workload.
        on_class_change: Called when a flavor or a priority class has changed, which may concern any job.
    """

    def __init__(self, on_change: OnChange, on_class_change: Callable[[], None]) -> None:
        self.workloads = OwnedStore(workload_view, on_change)
        self._flavors = ClusterObjects(flavor_view, on_class_change)
        self._workload_priorities = ClusterObjects(priority_value, on_class_change)
        self._pod_priorities = ClusterObjects(priority_value, on_class_change)

    def scopes(self, namespaces: Sequence[str | None]) -> list[tuple[Scope, ObjectStore]]:
        """Return the watched objects with their caches.

        Args:
            namespaces: Namespaces of the jobs; None: all.
        """
        return [
            *((Scope(WORKLOADS, namespace, OWNED_SELECTOR), self.workloads) for namespace in namespaces),
            (Scope(RESOURCE_FLAVORS), self._flavors),
            (Scope(WORKLOAD_PRIORITY_CLASSES), self._workload_priorities),
            (Scope(PRIORITY_CLASSES), self._pod_priorities),
        ]

    def view(self, key: JobKey) -> KueueView:
        """Return the objects that concern one job."""
        return KueueView(
            workloads=self.workloads.of_job(key),
            flavors=self._flavors.views(),
            workload_priorities=self._workload_priorities.views(),
            pod_priorities=self._pod_priorities.views(),
        )
