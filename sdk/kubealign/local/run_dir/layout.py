"""Run directory of one job: file layout, identity and shared memory."""

import json
import os
import re
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_hex
from uuid import uuid4

from kubealign.checkpoint_pins import PINS_FOLDER
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.lock import RunLock

# See kubealign_services.checkpoints.store.
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})")
_SHARED_MEMORY_ROOT = Path("/dev/shm")


@dataclass(frozen=True)
class RunIdentity:
    """Identity of a run for the lifetime of its directory."""

    uid: str
    #: Seconds since the epoch.
    created_at: float
    #: Incremented with each change of the job's spec.
    generation: int


class RunDirectory:
    """Run directory RUNS/JOB.

    Holds `job.json`, `status.json`, the JSON lines of `history`, `metrics`, `samples` and `events`, and
    the folders below.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.job = self.root / "job.json"
        self.status = self.root / "status.json"
        self.identity_file = self.root / "identity.json"
        #: Exists while the job is suspended; see `mark_suspended`.
        self.suspension_file = self.root / "suspended"
        self.metrics = self.root / "metrics.jsonl"
        self.samples = self.root / "samples.jsonl"
        #: Responses to held-out prompts: step-N.jsonl, in a folder of its own for each evaluation set.
        self.validation = self.root / "validation"
        #: Labels that people gave to responses.
        self.labels = self.root / "labels.jsonl"
        self.events = self.root / "events.jsonl"
        self.control = self.root / "control.sock"
        self.logs = self.root / "logs"
        self.settings = self.root / "settings"
        self.tls = self.root / "tls"
        self.nats = self.root / "nats"
        self.redis = self.root / "redis"
        #: Addresses for external agents: WORKER.json, while the worker runs.
        self.agents = self.root / "agents"
        self.checkpoints = self.root / "commits"
        self.result = self.root / "result"
        #: Written by the driver once it has taken over a checkpoint of another run.
        self.parent_record = self.root / "parent.json"
        #: Hard links to a checkpoint of another run, until the run has a checkpoint of its own.
        self.parent_checkpoint = self.root / "parent"
        self.prepared = self.root / "prepared"
        #: Written by `kubealign_services.data.preparation`.
        self.preparation_report = self.prepared / "report.json"
        self._lock = self.root.parent / f".{self.root.name}.lock"
        self._memory_record = self.root / "shared-memory"

    def log_path(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def termination_path(self, name: str) -> Path:
        """Return the path of the file where a process reports a permanent failure."""
        return self.settings / f"{name}.termination"

    def create(self) -> None:
        """Create the folders, accessible to their owner only: samples, weights and logs are private too."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.logs, self.checkpoints, self.root / PINS_FOLDER):
            folder.mkdir(exist_ok=True)
        for folder in (self.settings, self.tls, self.nats, self.redis):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not self.identity_file.exists():
            self._write_identity(RunIdentity(str(uuid4()), time.time(), 1))

    def write_job(self, document: str) -> None:
        """Write the job as JSON, atomically."""
        write_atomically(self.job, document + "\n")

    def read_identity(self) -> RunIdentity:
        """Return the identity; a directory of an older release is identified by device and inode."""
        try:
            document = json.loads(self.identity_file.read_bytes())
            return RunIdentity(
                str(document["uid"]), float(document["created_at"]), int(document["generation"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            there = self.root.stat()
            return RunIdentity(f"{there.st_dev:08x}-{there.st_ino:016x}", there.st_ctime, 1)

    def read_prepared_rows(self) -> int | None:
        """Return the number of rows of the prepared training data; None: the job is not prepared yet, or its
        rows are streamed.
        """
        try:
            report = json.loads(self.preparation_report.read_bytes())["train"]
            return None if report.get("streaming") else int(report["rows_kept"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of the checkpoints, ascending, whether intact or not."""
        names = [path.name for path in self.checkpoints.iterdir()] if self.checkpoints.exists() else []
        matches = (_CHECKPOINT_NAME.match(name) for name in names)
        return sorted({int(match[1]) for match in matches if match is not None})

    def describe_checkpoints(self) -> str:
        """Return the steps of the checkpoints in words, for errors: "those of 2, 4", or "none"."""
        steps = self.checkpoint_steps()
        return f"those of {', '.join(map(str, steps))}" if steps else "none"

    def newest_checkpoint_step(self) -> int:
        """Return the highest step of a checkpoint, whether intact or not; 0: there is none."""
        return max(self.checkpoint_steps(), default=0)

    def increment_generation(self) -> None:
        """Increment the generation after a change of the job's spec."""
        identity = self.read_identity()
        self._write_identity(replace(identity, generation=identity.generation + 1))

    def mark_suspended(self, runner: int) -> None:
        """Mark the job as suspended; process `runner` was asked to stop (0: none runs)."""
        write_atomically(self.suspension_file, f"{runner}\n")

    def lock(self) -> RunLock:
        return RunLock(self._lock, self.root)

    def delete(self) -> None:
        """Delete the run, its shared memory included.

        Raises RunRefused where the folder is not a run directory.
        """
        if self.root.exists():
            if not self.job.exists() and any(self.root.iterdir()):
                raise RunRefused(
                    f"{self.root} is not the folder of a run (it has no job.json): delete it yourself"
                )
            self.release_shared_memory()
            shutil.rmtree(self.root)

    def _write_identity(self, identity: RunIdentity) -> None:
        write_atomically(self.identity_file, json.dumps(asdict(identity)) + "\n")

    def claim_shared_memory(self) -> Path:
        """Create a folder on a memory file system for weights. One left by a killed runner is removed."""
        self.release_shared_memory()
        parent = (
            _SHARED_MEMORY_ROOT if os.access(_SHARED_MEMORY_ROOT, os.W_OK) else Path(tempfile.gettempdir())
        )
        folder = parent / f"kubealign-{self.root.name}-{token_hex(6)}"
        # Recorded before the folder is created, so that the next run always finds and removes it.
        self._memory_record.write_text(str(folder))
        folder.mkdir(mode=0o700)
        return folder

    def release_shared_memory(self) -> None:
        if self._memory_record.exists():
            folder = Path(self._memory_record.read_text())
            if folder.name.startswith(f"kubealign-{self.root.name}-") and folder.exists():
                shutil.rmtree(folder)
            self._memory_record.unlink()


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that its readers see the earlier text or the new one."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(text)
    draft.replace(path)
