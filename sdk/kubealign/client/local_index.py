"""The runs of a folder, known without being read each time: a look at all of them costs one stat a run.

Whatever a runner or a client writes into a run's folder it renames into place, which changes the folder's own
time. What only grows (figures, logs) is not kept here.
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

#: A look at all runs that is not older than this is good enough for another caller.
_FRESH_SECONDS = 0.5
#: Two changes within the clock's grain look like one: a folder that has just changed is read again.
_GRAIN_SECONDS = 0.1


@dataclass(frozen=True)
class Stored:
    """What the files of one run say, and where it stands. Times are seconds since the epoch."""

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
    #: The folder's time when it was read, in nanoseconds; `settled`: long enough ago for the clock to tell
    #: the next change from this one.
    changed: int
    settled: bool
    #: Of a job whose status is written anew only when it ends: the last step, and how long its file was then.
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
        """Those of the last step."""
        if self.newest is not None:
            return self.newest.values
        return self.facts.status.metrics if self.facts.status is not None else {}

    @property
    def reward(self) -> float | None:
        return self.figures.get("reward/mean")


class RunIndex:
    """Every method reads files: call it from a thread. It may be used by several at once."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._lock = threading.Lock()
        self._stored: dict[str, Stored] = {}
        self._looked = -_FRESH_SECONDS

    def all(self) -> list[Stored]:
        """Every run, in no order."""
        with self._lock:
            if time.monotonic() - self._looked >= _FRESH_SECONDS:
                self._look()
            return list(self._stored.values())

    def one(self, name: str) -> Stored | None:
        """The run of this name as it is now."""
        folder = RunFolder(self._runs_dir / name)
        with self._lock:
            try:
                changed = folder.root.stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                self._stored.pop(name, None)
                return None
            return self._entry(name, changed)

    def forget(self) -> None:
        """The next look is a new one: something was changed through this site."""
        with self._lock:
            self._looked = -_FRESH_SECONDS

    def _look(self) -> None:
        there = set()
        try:
            with os.scandir(self._runs_dir) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or not entry.is_dir():
                        continue
                    there.add(entry.name)
                    try:
                        self._entry(entry.name, entry.stat().st_mtime_ns)
                    except FileNotFoundError:
                        there.discard(entry.name)
        except FileNotFoundError:
            # Nothing was ever run here.
            pass
        for name in self._stored.keys() - there:
            del self._stored[name]
        self._looked = time.monotonic()

    def _entry(self, name: str, changed: int) -> Stored | None:
        held = self._stored.get(name)
        settled = changed < time.time_ns() - _GRAIN_SECONDS * 1e9
        if held is None or held.changed != changed or not held.settled:
            held = _read(RunFolder(self._runs_dir / name), name, changed, settled)
        elif not held.stands.phase.final:
            held = _again(held)
        if held is None:
            self._stored.pop(name, None)
        else:
            self._stored[name] = held
        return held


def _read(folder: RunFolder, name: str, changed: int, settled: bool) -> Stored | None:
    """None where the folder holds no job."""
    try:
        document: dict[str, Any] = json.loads(folder.job.read_bytes())
        metadata, algorithm = document["metadata"], document["spec"]["algorithm"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    identity = folder.identify()
    facts, stands = _stands(folder)
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
        stands=stands,
        changed=changed,
        settled=settled,
    )
    return _with_newest(stored)


def _again(held: Stored) -> Stored:
    """A runner that was killed, or has taken the lock, has changed nothing in the folder; a step neither."""
    if held.folder.lock().holder() != held.facts.holder:
        facts, stands = _stands(held.folder)
        held = replace(held, facts=facts, stands=stands)
    return _with_newest(held)


def _with_newest(held: Stored) -> Stored:
    status = held.facts.status
    if status is None or status.phase is not Phase.RUNNING:
        return held
    try:
        size = held.folder.metrics.stat().st_size
    except FileNotFoundError:
        return held
    if size == held.newest_bytes:
        return held
    return replace(held, newest=newest_step(held.folder.metrics), newest_bytes=size)


def _stands(folder: RunFolder) -> tuple[Facts, Standing]:
    try:
        facts = read_facts(folder)
    except RunRefused as damage:
        return Facts(), Standing(JobPhase.FAILED, str(damage))
    return facts, standing(facts)
