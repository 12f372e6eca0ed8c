"""The folder of one job's run: what lies where, and one runner at a time."""

import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from uuid import uuid4

from kubealign.local.failure import RunRefused
from kubealign.local.run_lock import RunLock

_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Identity:
    """What a run is known by for as long as its folder is there."""

    uid: str
    #: Seconds since the epoch.
    created_at: float
    #: Grows with each change of what is asked of the job.
    generation: int


class RunFolder:
    """RUNS/JOB. `job.json`, `status.json`, the lines of `history`, `metrics`, `samples` and `events`, and
    these folders."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.job = self.root / "job.json"
        self.status = self.root / "status.json"
        self.identity_file = self.root / "identity.json"
        #: There while the job is to wait; see `suspend`.
        self.suspension = self.root / "suspended"
        self.metrics = self.root / "metrics.jsonl"
        self.samples = self.root / "samples.jsonl"
        self.events = self.root / "events.jsonl"
        self.control = self.root / "control.sock"
        self.logs = self.root / "logs"
        self.settings = self.root / "settings"
        self.tls = self.root / "tls"
        self.nats = self.root / "nats"
        self.redis = self.root / "redis"
        self.commits = self.root / "commits"
        self.result = self.root / "result"
        self.prepared = self.root / "prepared"
        self._lock = self.root.parent / f".{self.root.name}.lock"
        self._memory_record = self.root / "shared-memory"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def termination(self, name: str) -> Path:
        """Where a process writes why a restart would not help."""
        return self.settings / f"{name}.termination"

    def make(self) -> None:
        """Make the folders. Those with secrets are their owner's alone."""
        self.root.mkdir(parents=True, exist_ok=True)
        for folder in (self.logs, self.commits):
            folder.mkdir(exist_ok=True)
        for folder in (self.settings, self.tls, self.nats, self.redis):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not self.identity_file.exists():
            self._write(Identity(str(uuid4()), time.time(), 1))

    def write_job(self, document: str) -> None:
        """The job as JSON, whole at any moment."""
        _replace(self.job, document + "\n")

    def identify(self) -> Identity:
        """A folder from before there were identities has one by its place on the disk."""
        try:
            held = json.loads(self.identity_file.read_bytes())
            return Identity(str(held["uid"]), float(held["created_at"]), int(held["generation"]))
        except (OSError, ValueError, KeyError, TypeError):
            there = self.root.stat()
            return Identity(f"{there.st_dev:08x}-{there.st_ino:016x}", there.st_ctime, 1)

    def change(self) -> None:
        """What is asked of the job has changed: it is of another generation."""
        identity = self.identify()
        self._write(replace(identity, generation=identity.generation + 1))

    def suspend(self, runner: int) -> None:
        """The job is to wait; process `runner` was told so (0: none runs)."""
        _replace(self.suspension, f"{runner}\n")

    def lock(self) -> RunLock:
        return RunLock(self._lock, self.root)

    def delete(self) -> None:
        """Everything of the run, its shared memory included. Refused where the folder is not a run's."""
        if self.root.exists():
            if not self.job.exists() and any(self.root.iterdir()):
                raise RunRefused(
                    f"{self.root} is not the folder of a run (it has no job.json): delete it yourself"
                )
            self.release_memory()
            shutil.rmtree(self.root)

    def _write(self, identity: Identity) -> None:
        _replace(self.identity_file, json.dumps(asdict(identity)) + "\n")

    def claim_memory(self) -> Path:
        """A fresh folder on a memory file system, for weights. One that a killed runner left is removed."""
        self.release_memory()
        parent = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        folder = parent / f"kubealign-{self.root.name}-{token_hex(6)}"
        # Written first: whatever happens next, the following run finds it.
        self._memory_record.write_text(str(folder))
        folder.mkdir(mode=0o700)
        return folder

    def release_memory(self) -> None:
        if self._memory_record.exists():
            folder = Path(self._memory_record.read_text())
            if folder.name.startswith(f"kubealign-{self.root.name}-") and folder.exists():
                shutil.rmtree(folder)
            self._memory_record.unlink()


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)
