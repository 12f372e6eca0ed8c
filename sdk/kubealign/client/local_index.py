"""Cached index of the runs in a folder; a scan of all runs costs one stat call per run.

Runners and clients replace files of a run directory by renaming, which changes the directory's
modification time.
Files that only grow (metrics, logs) are not cached.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kubealign.client.local_figures import Newest, newest_step
from kubealign.local.failure import RunRefused
from kubealign.local.run_folder import RunFolder
from kubealign.local.run_status import Phase
from kubealign.local.standing import Facts, Standing, read_facts, standing
from kubealign.spec.status import JobPhase

#: Age in seconds up to which a scan of all runs is reused.
_FRESH_SECONDS = 0.5
#: Clock resolution: changes within it are indistinguishable, so a recently changed folder is read again.
_GRAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Stored:
    """Contents of one run's files, and the phase derived from them. Times are in seconds since the epoch."""

    folder: RunFolder
    name: str
    namespace: str
    uid: str
    created: float
    generation: int
    labels: Mapping[str, str]
    algorithm: str
    facts: Facts
    stands: Standing
    #: Modification time of the folder when it was read, in nanoseconds. The flag after it is set once that
    #: time is old enough for the clock to distinguish the next change.
    changed: int
    settled: bool
    #: Last step, and the size of metrics.jsonl when it was read. The status file is only written at the end.
    newest: Newest | None = None
    newest_bytes: int = 0

    @property
    def phase(self) -> str:
        return self.stands.phase

    @property
    def step(self) -> int:
        step = self.facts.status.step if self.facts.status is not None else 0
        return max(step, self.newest.step) if self.newest is not None else step

    @property
    def figures(self) -> Mapping[str, float]:
        """Metrics of the last step."""
        if self.newest is not None:
            return self.newest.values
        return self.facts.status.metrics if self.facts.status is not None else {}

    @property
    def reward(self) -> float | None:
        return self.figures.get("reward/mean")


class RunIndex:
    """Thread-safe index. Every method reads files: call it from a thread."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._lock = threading.Lock()
        self._stored: dict[str, Stored] = {}
        self._looked = -_FRESH_SECONDS

    def all(self) -> list[Stored]:
        """Return every run, unordered."""
        with self._lock:
            if time.monotonic() - self._looked >= _FRESH_SECONDS:
                self._look()
            return list(self._stored.values())

    def one(self, name: str) -> Stored | None:
        """Return the present state of a run; None if it does not exist."""
        folder = RunFolder(self._runs_dir / name)
        with self._lock:
            try:
                changed = folder.root.stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                self._stored.pop(name, None)
                return None
            return self._entry(name, changed)

    def forget(self) -> None:
        """Force the next read to scan again, after a change through this backend."""
        with self._lock:
            self._looked = -_FRESH_SECONDS

    def _look(self) -> None:
        names = set()
        try:
            with os.scandir(self._runs_dir) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not entry.is_dir():
                        continue
                    names.add(entry.name)
                    try:
                        self._entry(entry.name, entry.stat().st_mtime_ns)
                    except FileNotFoundError:
                        names.discard(entry.name)
        except FileNotFoundError:
            # No job was ever run in this folder.
            pass
        for name in self._stored.keys() - names:
            del self._stored[name]
        self._looked = time.monotonic()

    def _entry(self, name: str, changed: int) -> Stored | None:
        run = self._stored.get(name)
        settled = changed < time.time_ns() - _GRAIN_SECONDS * 1e9
        if run is None or run.changed != changed or not run.settled:
            run = _read(RunFolder(self._runs_dir / name), name, changed, settled)
        elif not run.stands.phase.final:
            run = _again(run)
        if run is None:
            self._stored.pop(name, None)
        else:
            self._stored[name] = run
        return run


def _read(folder: RunFolder, name: str, changed: int, settled: bool) -> Stored | None:
    """Read a run; None if the folder holds no job."""
    try:
        document: dict[str, Any] = json.loads(folder.job.read_bytes())
        metadata, algorithm = document["metadata"], document["spec"]["algorithm"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    identity = folder.identify()
    facts, run_phase = _stands(folder)
    stored = Stored(
        folder=folder,
        name=name,
        namespace=str(metadata.get("namespace") or "default"),
        uid=identity.uid,
        created=identity.created_at,
        generation=identity.generation,
        labels=metadata.get("labels") or {},
        algorithm=next((member for member, value in algorithm.items() if value is not None), ""),
        facts=facts,
        stands=run_phase,
        changed=changed,
        settled=settled,
    )
    return _with_newest(stored)


def _again(run: Stored) -> Stored:
    """Refresh what can change without a change of the directory's time.

    A runner that was killed or has taken the lock does not change the directory, and neither does a step.
    """
    if run.folder.lock().holder() != run.facts.holder:
        facts, stands = _stands(run.folder)
        run = replace(run, facts=facts, stands=stands)
    return _with_newest(run)


def _with_newest(run: Stored) -> Stored:
    status = run.facts.status
    if status is None or status.phase is not Phase.RUNNING:
        return run
    try:
        size = run.folder.metrics.stat().st_size
    except FileNotFoundError:
        return run
    if size == run.newest_bytes:
        return run
    return replace(run, newest=newest_step(run.folder.metrics), newest_bytes=size)


def _stands(folder: RunFolder) -> tuple[Facts, Standing]:
    try:
        facts = read_facts(folder)
    except RunRefused as error:
        return Facts(), Standing(JobPhase.FAILED, str(error))
    return facts, standing(facts)
