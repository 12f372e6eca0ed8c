"""The folder of one job's run: what lies where, and one runner at a time."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from secrets import token_hex

from kubealign.local.failure import RunRefused

_MEMORY = Path("/dev/shm")


class RunFolder:
    """RUNS/JOB. `job.json`, `status.json`, `history.jsonl`, `metrics.jsonl` and these folders."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.job = self.root / "job.json"
        self.status = self.root / "status.json"
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

    def lock(self) -> "RunLock":
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


class RunLock:
    """Held by one runner at a time; the kernel lets go of it when the runner ends, however it ends."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises RunRefused, naming the process that has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RunRefused(
                f"{self._folder} is in use by another kubealign run (process {holder}): "
                "wait for it, stop it, or choose another --runs-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
