"""Caches of jobs and of the objects that they own, reduced to the fields in use and indexed by job.

The server's answers to the operator's own writes are stored as well, so that a reconcile never works on a
state before the operator's last write. An object is only replaced by a newer resourceVersion.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kubealign.kube.documents import UnreadableObject
from kubealign.kube.resources import resource_version
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.state.job_views import dependency_names, phase_of, strip_unused_metadata
from kubealign_operator.kube_views.kueue_view import is_dispatched
from kubealign_operator.kube_views.observed_job import PodView
from kubealign_operator.kube_views.pod_state import has_terminated
from kubealign_operator.kube_views.pod_view import pod_view
from kubealign_operator.names import JOB_LABEL

Json = dict[str, Any]
OnChange = Callable[[JobKey], None]

_IDENTIFYING_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"
)  # fmt: skip
#: The fastest.
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job as last observed."""

    version: int
    uid: str
    #: The object with the metadata that identifies it and its status, without its spec.
    resource: Json
    #: Compressed metadata and spec.
    packed_metadata: bytes
    packed_spec: bytes
    #: Names of the jobs in the namespace whose results it reads.
    dependencies: frozenset[str]
    #: Reason why parts of the object are missing; empty: none are.
    unreadable: str = ""
    #: Another cluster runs the job: this one has neither its pods nor its credentials.
    is_dispatched: bool = False

    def document(self) -> Json:
        """Return the complete object, without unused metadata. It is parsed anew at each call."""
        document = {**self.resource, "metadata": _unpack(self.packed_metadata)}
        return {**document, "spec": _unpack(self.packed_spec)} if self.packed_spec else document

    @property
    def phase(self) -> str:
        """status.phase; empty before the first status."""
        return phase_of(self.resource)

    @property
    def generation(self) -> object:
        return self.resource["metadata"].get("generation")

    @property
    def status(self) -> Mapping[str, Any]:
        value = self.resource.get("status")
        return value if isinstance(value, dict) else {}

    @property
    def is_deleting(self) -> bool:
        return "deletionTimestamp" in self.resource["metadata"]


OnStored = Callable[[JobKey, WatchedJob | None], None]


class _WatchedVersions:
    """Versions up to which the watches have delivered all events, by namespace."""

    def __init__(self) -> None:
        self._by_scope: dict[str | None, int] = {}

    def set(self, namespace: str | None, version: int) -> None:
        self._by_scope[namespace] = version

    def covers(self, namespace: str, version: int) -> bool:
        """Return True when the watch has delivered this version: a late answer must not override it."""
        return version <= max(self._by_scope.get(None, 0), self._by_scope.get(namespace, 0))


class JobStore:
    """Cache of the jobs.

    `on_change` is called for a job that is new, changed or gone, and for the jobs that depend on it.
    `on_stored` is called with each stored version, also of own writes; None: the job is gone. Tenants write
    megabytes into specs and annotations: both are kept as compressed JSON.
    """

    def __init__(self, on_change: OnChange, on_stored: OnStored = lambda key, job: None) -> None:
        self._on_change = on_change
        self._on_stored = on_stored
        self._jobs: dict[JobKey, WatchedJob] = {}
        self._dependents: defaultdict[JobKey, set[JobKey]] = defaultdict(set)
        self._watched_versions = _WatchedVersions()

    def get(self, key: JobKey) -> WatchedJob | None:
        return self._jobs.get(key)

    def items(self) -> Iterable[tuple[JobKey, WatchedJob]]:
        return self._jobs.items()

    def phases(self) -> Iterator[tuple[str, str]]:
        """Return namespace and phase of each job."""
        return ((key.namespace, job.phase) for key, job in self._jobs.items())

    def put(self, item: Json) -> None:
        key = JobKey(item["metadata"]["namespace"], item["metadata"]["name"])
        if self._store(key, item):
            self._on_change(key)
            self._notify_dependents(key)

    def record_write(self, item: Json) -> None:
        """Store the server's answer to the operator's own status patch. Only dependent jobs are notified."""
        metadata = item["metadata"]
        if self._watched_versions.covers(metadata["namespace"], resource_version(metadata)):
            return
        key = JobKey(metadata["namespace"], metadata["name"])
        if self._store(key, item):
            self._notify_dependents(key)

    def remove(self, item: Json) -> None:
        metadata = item["metadata"]
        key = JobKey(metadata["namespace"], metadata["name"])
        job = self._jobs.get(key)
        if job is not None and job.version <= resource_version(metadata):
            self._drop(key, job)

    def sweep(self, namespace: str | None, uids: set[str], listed_version: int) -> None:
        for key, job in list(self._jobs.items()):
            if namespace in (None, key.namespace) and job.version <= listed_version and job.uid not in uids:
                self._drop(key, job)

    def advance_to(self, namespace: str | None, version: int) -> None:
        self._watched_versions.set(namespace, version)

    def _store(self, key: JobKey, item: Json) -> bool:
        """Store the job. False: the cached version is as new."""
        before = self._jobs.get(key)
        if before is not None and resource_version(item["metadata"]) <= before.version:
            return False
        job = strip_unused_metadata(item)
        metadata, has_spec, spec = job["metadata"], "spec" in job, job.pop("spec", None)
        unreadable = item.reason if isinstance(item, UnreadableObject) else ""
        version, uid, packed_metadata = resource_version(metadata), str(metadata["uid"]), _pack(metadata)
        job["metadata"] = {name: metadata[name] for name in _IDENTIFYING_METADATA if name in metadata}
        if before is not None and before.uid == uid and before.generation == metadata.get("generation"):
            # The spec is unchanged: it is searched and compressed only once.
            tracked = replace(before, version=version, resource=job, packed_metadata=packed_metadata)
        else:
            packed_spec = _pack(spec) if has_spec else b""
            dependencies = frozenset() if unreadable else dependency_names({"spec": spec})
            tracked = WatchedJob(
                version,
                uid,
                job,
                packed_metadata,
                packed_spec,
                dependencies,
                unreadable=unreadable,
                is_dispatched=is_dispatched({"spec": spec}),
            )
        self._jobs[key] = tracked
        self._on_stored(key, tracked)
        self._index(key, before.dependencies if before else frozenset(), tracked.dependencies)
        return True

    def _drop(self, key: JobKey, job: WatchedJob) -> None:
        del self._jobs[key]
        self._on_stored(key, None)
        self._index(key, job.dependencies, frozenset())
        self._on_change(key)
        self._notify_dependents(key)

    def _index(self, key: JobKey, before: frozenset[str], after: frozenset[str]) -> None:
        for name in before - after:
            needed = JobKey(key.namespace, name)
            self._dependents[needed].discard(key)
            if not self._dependents[needed]:
                del self._dependents[needed]
        for name in after - before:
            self._dependents[JobKey(key.namespace, name)].add(key)

    def _notify_dependents(self, key: JobKey) -> None:
        for dependent in tuple(self._dependents.get(key, ())):
            self._on_change(dependent)


View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class _WatchedObject(Generic[View]):
    version: int
    uid: str
    view: View


class OwnedStore(Generic[View]):
    """Cache of the views of objects of one kind, by the job that their label names.

    `on_change` is called for the job of a changed object.
    """

    def __init__(self, build: Callable[[Json], View], on_change: OnChange) -> None:
        self._build = build
        self._on_change = on_change
        self._objects: defaultdict[JobKey, dict[str, _WatchedObject[View]]] = defaultdict(dict)
        self._watched_versions = _WatchedVersions()

    def of_job(self, job: JobKey) -> tuple[View, ...]:
        """Return the views of a job's objects, sorted by name."""
        objects = self._objects.get(job, {})
        return tuple(objects[name].view for name in sorted(objects))

    def put(self, item: Json) -> None:
        job = _job_key(item["metadata"])
        if job is not None and self._store(job, item):
            self._on_change(job)

    def record_write(self, item: Json) -> None:
        """Store the server's answer to the operator's own write. Nobody is notified: the writer knows."""
        metadata = item["metadata"]
        job = _job_key(metadata)
        if job is not None and not self._watched_versions.covers(
            metadata["namespace"], resource_version(metadata)
        ):
            self._store(job, item)

    def remove(self, item: Json) -> None:
        metadata = item["metadata"]
        job = _job_key(metadata)
        if job is None:
            return
        stored = self._objects.get(job, {}).get(metadata["name"])
        if stored is not None and stored.version <= resource_version(metadata):
            self._drop(job, metadata["name"])

    def sweep(self, namespace: str | None, uids: set[str], listed_version: int) -> None:
        for job, objects in list(self._objects.items()):
            if namespace not in (None, job.namespace):
                continue
            for name, stored in list(objects.items()):
                if stored.version <= listed_version and stored.uid not in uids:
                    self._drop(job, name)

    def advance_to(self, namespace: str | None, version: int) -> None:
        self._watched_versions.set(namespace, version)

    def _store(self, job: JobKey, item: Json) -> bool:
        """Store the object. False: its view is unchanged."""
        metadata = item["metadata"]
        objects = self._objects[job]
        before = objects.get(metadata["name"])
        if before is not None and resource_version(metadata) <= before.version:
            return False
        view = self._build(item)
        stored = _WatchedObject(resource_version(metadata), str(metadata["uid"]), view)
        objects[metadata["name"]] = stored
        return before is None or before.view != view

    def _drop(self, job: JobKey, name: str) -> None:
        del self._objects[job][name]
        if not self._objects[job]:
            del self._objects[job]
        self._on_change(job)


class PodStore(OwnedStore[PodView]):
    """Cache of the pods of jobs."""

    def __init__(self, on_change: OnChange) -> None:
        super().__init__(pod_view, on_change)

    def gpus(self) -> Iterator[tuple[str, int]]:
        """Yield the namespace and the GPUs of each pod that has a node and has not ended."""
        for job, pods in self._objects.items():
            for pod in pods.values():
                if pod.view.gpus and pod.view.node and not has_terminated(pod.view):
                    yield job.namespace, pod.view.gpus


def _pack(value: object) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), _COMPRESSION_LEVEL)


def _unpack(packed: bytes) -> Any:
    return json.loads(zlib.decompress(packed))


def _job_key(metadata: Mapping[str, Any]) -> JobKey | None:
    name = (metadata.get("labels") or {}).get(JOB_LABEL)
    return JobKey(metadata["namespace"], name) if isinstance(name, str) else None
