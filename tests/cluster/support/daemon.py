"""Long-running process of a test cluster."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kubealign.local.processes.parent_death import die_with_parent

_POLL_SECONDS = 0.05
_TAIL_BYTES = 10000
_KILL_SECONDS = 20.0
#: Programs in Go collect garbage less often, until they have a gibibyte: a sixth less processor time.
_GO_MEMORY = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}


class DaemonFailed(Exception):
    """A program of the cluster ended or was not ready in time; the text has the end of its log."""


def plain_environment() -> dict[str, str]:
    """Return the inherited environment, without the user's proxy, kubeconfig and Go settings."""
    inherited = ("PATH", "LANG", "TMPDIR")
    return {name: os.environ[name] for name in inherited if name in os.environ}


class Daemon:
    """One process, signalled by its own id; the kernel ends the process when the test process is killed.

    Start a daemon from a thread that lives at least as long as the daemon: the kernel watches that thread."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self._environment = {**plain_environment(), **_GO_MEMORY, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id. Raises DaemonFailed when the process was never started."""
        if self._process is None:
            raise DaemonFailed(f"{self.name} was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last run; None while the process runs and before its first start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process and append its output to the log. Raises DaemonFailed when it runs already."""
        if self.alive:
            raise DaemonFailed(f"{self.name} runs already, as process {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # A separate process group: Ctrl-C in the terminal reaches only the test process.
                process_group=0,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

    def stop(self, grace: float = 5.0) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds. Does nothing when the process does not run."""
        if self._process is None or not self.alive:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(_KILL_SECONDS)

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return "(no log)"
        end = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return "\n".join(end.splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], what: str, deadline: float) -> None:
        """Wait at most `deadline` seconds until `ready` returns True.

        Raises DaemonFailed with the end of the log at the deadline, or when the process ends earlier."""
        end = time.monotonic() + deadline
        while not ready():
            if not self.alive:
                code = self._process.returncode if self._process else None
                raise DaemonFailed(
                    f"{self.name} ended with {code} before {what}; its log ends:\n{self.tail()}"
                )
            if time.monotonic() > end:
                raise DaemonFailed(
                    f"waited {deadline:g} s for {what} of {self.name}; its log ends:\n{self.tail()}"
                )
            time.sleep(_POLL_SECONDS)
