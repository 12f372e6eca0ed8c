"""Caches of jobs and pods, reduced to the fields in use and indexed by job.

The server's answers to the operator's own writes are stored as well, so that a reconcile never works on a
state
before the operator's last write. An object is only replaced by a newer resourceVersion.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubealign.roles import Process
from kubealign_operator.controller.resources import Key, version
from kubealign_operator.controller.views import needed_jobs, phase_of, trimmed
from kubealign_operator.render.names import JOB_LABEL
from kubealign_operator.render.observed import PodView
from kubealign_operator.render.parsing import processes_of
from kubealign_operator.render.pod_view import pod_view

Json = dict[str, Any]
Changed = Callable[[Key], None]


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job as last observed."""

    version: int
    uid: str
    #: The object without unused metadata.
    job: Json
    #: Names of the jobs in the namespace whose results it reads.
    needs: frozenset[str]
    #: Empty when the spec is invalid and nothing can be started.
    processes: tuple[Process, ...]

    @property
    def phase(self) -> str:
        """status.phase; empty before the first status."""
        return phase_of(self.job)

    @property
    def generation(self) -> object:
        return self.job["metadata"].get("generation")

    @property
    def status(self) -> Mapping[str, Any]:
        value = self.job.get("status")
        return value if isinstance(value, dict) else {}

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.job["metadata"]


class _Reached:
    """Versions up to which the watches have delivered all events, by namespace."""

    def __init__(self) -> None:
        self._by_scope: dict[str | None, int] = {}

    def set(self, namespace: str | None, reached: int) -> None:
        self._by_scope[namespace] = reached

    def told(self, namespace: str, moment: int) -> bool:
        """Return True when the watch has delivered this version: a late answer must not override it."""
        return moment <= max(self._by_scope.get(None, 0), self._by_scope.get(namespace, 0))


class Jobs:
    """Cache of the jobs.

    `on_change` is called for a job that is new, changed or gone, and for the jobs that depend on it.
    """

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._held: dict[Key, HeldJob] = {}
        self._needed_by: defaultdict[Key, set[Key]] = defaultdict(set)
        self._reached = _Reached()

    def get(self, key: Key) -> HeldJob | None:
        return self._held.get(key)

    def items(self) -> Iterable[tuple[Key, HeldJob]]:
        return self._held.items()

    def phases(self) -> Iterator[str]:
        return (job.phase for job in self._held.values())

    def put(self, item: Json) -> None:
        key = Key(item["metadata"]["namespace"], item["metadata"]["name"])
        if self._keep(key, item):
            self._changed(key)
            self._tell_dependents(key)

    def written(self, item: Json) -> None:
        """Store the server's answer to the operator's own status patch. Only dependent jobs are notified."""
        metadata = item["metadata"]
        if self._reached.told(metadata["namespace"], version(metadata)):
            return
        key = Key(metadata["namespace"], metadata["name"])
        if self._keep(key, item):
            self._tell_dependents(key)

    def remove(self, item: Json) -> None:
        metadata = item["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        job = self._held.get(key)
        if job is not None and job.version <= version(metadata):
            self._drop(key, job)

    def sweep(self, namespace: str | None, kept: set[str], reached: int) -> None:
        for key, job in list(self._held.items()):
            if namespace in (None, key.namespace) and job.version <= reached and job.uid not in kept:
                self._drop(key, job)

    def reach(self, namespace: str | None, reached: int) -> None:
        self._reached.set(namespace, reached)

    def _keep(self, key: Key, item: Json) -> bool:
        """Store the job. False: the cached version is as new."""
        before = self._held.get(key)
        if before is not None and version(item["metadata"]) <= before.version:
            return False
        job = trimmed(item)
        uid = str(job["metadata"]["uid"])
        if (
            before is not None
            and before.uid == uid
            and before.generation == job["metadata"].get("generation")
        ):
            # The spec is unchanged: parse and keep it only once.
            job["spec"] = before.job.get("spec")
            tracked = HeldJob(version(job["metadata"]), uid, job, before.needs, before.processes)
        else:
            tracked = HeldJob(version(job["metadata"]), uid, job, needed_jobs(job), processes_of(job))
        self._held[key] = tracked
        self._index(key, before.needs if before else frozenset(), tracked.needs)
        return True

    def _drop(self, key: Key, job: HeldJob) -> None:
        del self._held[key]
        self._index(key, job.needs, frozenset())
        self._changed(key)
        self._tell_dependents(key)

    def _index(self, key: Key, before: frozenset[str], after: frozenset[str]) -> None:
        for name in before - after:
            needed = Key(key.namespace, name)
            self._needed_by[needed].discard(key)
            if not self._needed_by[needed]:
                del self._needed_by[needed]
        for name in after - before:
            self._needed_by[Key(key.namespace, name)].add(key)

    def _tell_dependents(self, key: Key) -> None:
        for dependent in tuple(self._needed_by.get(key, ())):
            self._changed(dependent)


@dataclass(frozen=True, slots=True)
class _HeldPod:
    version: int
    view: PodView


class Pods:
    """Cache of pods, by the job that their label names. `on_change` is called for the job of a changed pod.
    """

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._held: defaultdict[Key, dict[str, _HeldPod]] = defaultdict(dict)
        self._reached = _Reached()

    def of(self, job: Key) -> tuple[PodView, ...]:
        """Return the pods of a job, sorted by name."""
        pods = self._held.get(job, {})
        return tuple(pods[name].view for name in sorted(pods))

    def put(self, item: Json) -> None:
        job = _job_of(item["metadata"])
        if job is not None and self._keep(job, item):
            self._changed(job)

    def written(self, item: Json) -> None:
        """Store the server's answer to the operator's own write. Nobody is notified: the writer knows."""
        metadata = item["metadata"]
        job = _job_of(metadata)
        if job is not None and not self._reached.told(metadata["namespace"], version(metadata)):
            self._keep(job, item)

    def remove(self, item: Json) -> None:
        metadata = item["metadata"]
        job = _job_of(metadata)
        if job is None:
            return
        pod = self._held.get(job, {}).get(metadata["name"])
        if pod is not None and pod.version <= version(metadata):
            self._drop(job, metadata["name"])

    def sweep(self, namespace: str | None, kept: set[str], reached: int) -> None:
        for job, pods in list(self._held.items()):
            if namespace not in (None, job.namespace):
                continue
            for name, pod in list(pods.items()):
                if pod.version <= reached and pod.view.uid not in kept:
                    self._drop(job, name)

    def reach(self, namespace: str | None, reached: int) -> None:
        self._reached.set(namespace, reached)

    def _keep(self, job: Key, item: Json) -> bool:
        """Store the pod. False: its view is unchanged."""
        metadata = item["metadata"]
        pods = self._held[job]
        before = pods.get(metadata["name"])
        if before is not None and version(metadata) <= before.version:
            return False
        view = pod_view(item)
        pods[metadata["name"]] = _HeldPod(version(metadata), view)
        return before is None or before.view != view

    def _drop(self, job: Key, name: str) -> None:
        del self._held[job][name]
        if not self._held[job]:
            del self._held[job]
        self._changed(job)


def _job_of(metadata: Mapping[str, Any]) -> Key | None:
    name = (metadata.get("labels") or {}).get(JOB_LABEL)
    return Key(metadata["namespace"], name) if isinstance(name, str) else None
