"""Cached index of the runs in a folder; a scan of all runs costs one stat call per run.

Runners and clients replace files of a run directory by renaming, which changes the directory's
modification time. Files that only grow (metrics, logs) are not cached.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubealign.client.backends.local.metrics import LastStep, read_last_step
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.phase import RunFacts, RunPhase, derive_phase, read_run_facts
from kubealign.local.run_dir.status import Phase
from kubealign.spec.status import JobPhase

#: Age in seconds up to which a scan of all runs is reused.
_MAX_AGE_SECONDS = 0.5
#: Clock resolution: changes within it are indistinguishable, so a recently changed folder is read again.
_CLOCK_GRAIN_SECONDS = 0.1


@dataclass(frozen=True)
class StoredRun:
    """Contents of one run's files, and the phase derived from them. Times are in seconds since the epoch."""

    folder: RunDirectory
    name: str
    namespace: str
    uid: str
    created: float
    generation: int
    labels: Mapping[str, str]
    algorithm: str
    facts: RunFacts
    run_phase: RunPhase
    #: Modification time of the folder when it was read, in nanoseconds. The flag after it is set once that
    #: time is old enough for the clock to distinguish the next change.
    modified_ns: int
    is_settled: bool
    #: Last step, and the size of metrics.jsonl when it was read. The status file is only written at the end.
    last_step: LastStep | None = None
    metrics_bytes: int = 0

    @property
    def phase(self) -> str:
        return self.run_phase.phase

    @property
    def step(self) -> int:
        step = self.facts.status.step if self.facts.status is not None else 0
        return max(step, self.last_step.step) if self.last_step is not None else step

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last step."""
        if self.last_step is not None:
            return self.last_step.values
        return self.facts.status.metrics if self.facts.status is not None else {}

    @property
    def reward(self) -> float | None:
        return self.metrics.get("reward/mean")


class RunIndex:
    """Thread-safe index. Every method reads files: call it from a thread."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._lock = threading.Lock()
        self._runs: dict[str, StoredRun] = {}
        self._scanned_at = -_MAX_AGE_SECONDS

    def list_runs(self) -> list[StoredRun]:
        """Return every run, unordered."""
        with self._lock:
            if time.monotonic() - self._scanned_at >= _MAX_AGE_SECONDS:
                self._scan()
            return list(self._runs.values())

    def get(self, name: str) -> StoredRun | None:
        """Return the present state of a run; None if it does not exist."""
        folder = RunDirectory(self._runs_dir / name)
        with self._lock:
            try:
                changed = folder.root.stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                self._runs.pop(name, None)
                return None
            return self._refresh_entry(name, changed)

    def invalidate(self) -> None:
        """Force the next read to scan again, after a change through this backend."""
        with self._lock:
            self._scanned_at = -_MAX_AGE_SECONDS

    def _scan(self) -> None:
        names = set()
        try:
            with os.scandir(self._runs_dir) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not entry.is_dir():
                        continue
                    names.add(entry.name)
                    try:
                        self._refresh_entry(entry.name, entry.stat().st_mtime_ns)
                    except FileNotFoundError:
                        names.discard(entry.name)
        except FileNotFoundError:
            # No job was ever run in this folder.
            pass
        for name in self._runs.keys() - names:
            del self._runs[name]
        self._scanned_at = time.monotonic()

    def _refresh_entry(self, name: str, changed: int) -> StoredRun | None:
        run = self._runs.get(name)
        settled = changed < time.time_ns() - _CLOCK_GRAIN_SECONDS * 1e9
        if run is None or run.modified_ns != changed or not run.is_settled:
            run = _read_run(RunDirectory(self._runs_dir / name), name, changed, settled)
        elif not run.run_phase.phase.is_final:
            run = _refresh_run(run)
        if run is None:
            self._runs.pop(name, None)
        else:
            self._runs[name] = run
        return run


def _read_run(folder: RunDirectory, name: str, changed: int, settled: bool) -> StoredRun | None:
    """Read a run; None if the folder holds no job."""
    try:
        document: dict[str, Any] = json.loads(folder.job.read_bytes())
        metadata, algorithm = document["metadata"], document["spec"]["algorithm"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    identity = folder.read_identity()
    facts, run_phase = _read_phase(folder)
    stored = StoredRun(
        folder=folder,
        name=name,
        namespace=str(metadata.get("namespace") or "default"),
        uid=identity.uid,
        created=identity.created_at,
        generation=identity.generation,
        labels=metadata.get("labels") or {},
        algorithm=next((member for member, value in algorithm.items() if value is not None), ""),
        facts=facts,
        run_phase=run_phase,
        modified_ns=changed,
        is_settled=settled,
    )
    return _with_last_step(stored)


def _refresh_run(run: StoredRun) -> StoredRun:
    """Refresh what can change without a change of the directory's time.

    A runner that was killed or has taken the lock does not change the directory, and neither does a step.
    """
    if run.folder.lock().read_holder() != run.facts.holder:
        facts, run_phase = _read_phase(run.folder)
        run = replace(run, facts=facts, run_phase=run_phase)
    return _with_last_step(run)


def _with_last_step(run: StoredRun) -> StoredRun:
    status = run.facts.status
    if status is None or status.phase is not Phase.RUNNING:
        return run
    try:
        size = run.folder.metrics.stat().st_size
    except FileNotFoundError:
        return run
    if size == run.metrics_bytes:
        return run
    return replace(run, last_step=read_last_step(run.folder.metrics), metrics_bytes=size)


def _read_phase(folder: RunDirectory) -> tuple[RunFacts, RunPhase]:
    try:
        facts = read_run_facts(folder)
    except RunRefused as error:
        return RunFacts(), RunPhase(JobPhase.FAILED, str(error))
    return facts, derive_phase(facts)
