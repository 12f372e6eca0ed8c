"""What the operator knows of jobs and pods: cut down to what is read, and indexed by job.

What the operator itself wrote is put here from the server's answer, so that a look never works on a state
before its own last act. Versions decide: nothing older replaces what is there.
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
    """A job as it was last seen."""

    version: int
    uid: str
    #: The whole object without what nobody reads.
    job: Json
    #: The jobs of the namespace whose results it reads.
    needs: frozenset[str]
    #: Empty where the spec is invalid, and nothing can be started.
    processes: tuple[Process, ...]

    @property
    def phase(self) -> str:
        """Empty before the first status."""
        return phase_of(self.job)

    @property
    def generation(self) -> object:
        return self.job["metadata"].get("generation")

    @property
    def status(self) -> Mapping[str, Any]:
        held = self.job.get("status")
        return held if isinstance(held, dict) else {}

    @property
    def deleting(self) -> bool:
        return "deletionTimestamp" in self.job["metadata"]


class _Reached:
    """Up to which version the watches have told everything, by namespace."""

    def __init__(self) -> None:
        self._by_scope: dict[str | None, int] = {}

    def set(self, namespace: str | None, reached: int) -> None:
        self._by_scope[namespace] = reached

    def told(self, namespace: str, moment: int) -> bool:
        """The watch has been there: what it said counts, not an answer that came late."""
        return moment <= max(self._by_scope.get(None, 0), self._by_scope.get(namespace, 0))


class Jobs:
    """The jobs. `changed` is called for a job that is new, differs or is gone, and for those that need it."""

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
        return (held.phase for held in self._held.values())

    def put(self, item: Json) -> None:
        key = Key(item["metadata"]["namespace"], item["metadata"]["name"])
        if self._keep(key, item):
            self._changed(key)
            self._tell_dependents(key)

    def written(self, item: Json) -> None:
        """The server's answer to our own status patch. Only the jobs that need this one are told."""
        metadata = item["metadata"]
        if self._reached.told(metadata["namespace"], version(metadata)):
            return
        key = Key(metadata["namespace"], metadata["name"])
        if self._keep(key, item):
            self._tell_dependents(key)

    def remove(self, item: Json) -> None:
        metadata = item["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        held = self._held.get(key)
        if held is not None and held.version <= version(metadata):
            self._drop(key, held)

    def sweep(self, namespace: str | None, kept: set[str], reached: int) -> None:
        for key, held in list(self._held.items()):
            if namespace in (None, key.namespace) and held.version <= reached and held.uid not in kept:
                self._drop(key, held)

    def reach(self, namespace: str | None, reached: int) -> None:
        self._reached.set(namespace, reached)

    def _keep(self, key: Key, item: Json) -> bool:
        """False: what is held is as new."""
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
            # The spec is the same: no need to read it, nor to keep it, twice.
            job["spec"] = before.job.get("spec")
            held = HeldJob(version(job["metadata"]), uid, job, before.needs, before.processes)
        else:
            held = HeldJob(version(job["metadata"]), uid, job, needed_jobs(job), processes_of(job))
        self._held[key] = held
        self._index(key, before.needs if before else frozenset(), held.needs)
        return True

    def _drop(self, key: Key, held: HeldJob) -> None:
        del self._held[key]
        self._index(key, held.needs, frozenset())
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
    """The pods of jobs, by the job that their label names. `changed` is called for the job of a pod that
    differs."""

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._held: defaultdict[Key, dict[str, _HeldPod]] = defaultdict(dict)
        self._reached = _Reached()

    def of(self, job: Key) -> tuple[PodView, ...]:
        """By name."""
        held = self._held.get(job, {})
        return tuple(held[name].view for name in sorted(held))

    def put(self, item: Json) -> None:
        job = _job_of(item["metadata"])
        if job is not None and self._keep(job, item):
            self._changed(job)

    def written(self, item: Json) -> None:
        """The server's answer to our own write. Nobody is told: the writer knows."""
        metadata = item["metadata"]
        job = _job_of(metadata)
        if job is not None and not self._reached.told(metadata["namespace"], version(metadata)):
            self._keep(job, item)

    def remove(self, item: Json) -> None:
        metadata = item["metadata"]
        job = _job_of(metadata)
        if job is None:
            return
        held = self._held.get(job, {}).get(metadata["name"])
        if held is not None and held.version <= version(metadata):
            self._drop(job, metadata["name"])

    def sweep(self, namespace: str | None, kept: set[str], reached: int) -> None:
        for job, pods in list(self._held.items()):
            if namespace not in (None, job.namespace):
                continue
            for name, held in list(pods.items()):
                if held.version <= reached and held.view.uid not in kept:
                    self._drop(job, name)

    def reach(self, namespace: str | None, reached: int) -> None:
        self._reached.set(namespace, reached)

    def _keep(self, job: Key, item: Json) -> bool:
        """False: it says nothing new."""
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
