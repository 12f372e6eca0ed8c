"""A program of the cluster that runs until it is told to end."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from kubealign.local.death import die_with_parent

_POLL_SECONDS = 0.05
_TAIL_BYTES = 10000
_KILL_SECONDS = 20.0
_PORTS = range(20000, 30000)
_PORT_TRIALS = 50


class DaemonFailed(Exception):
    """A program of the cluster ended or was not ready in time; the text has the end of its log."""


def plain_environment() -> dict[str, str]:
    """What the programs inherit: no proxy, kubeconfig or Go setting of the user's."""
    kept = ("PATH", "LANG", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}


def free_port() -> int:
    """A TCP port that nobody listens on at this moment. Raises DaemonFailed when none is found.

    The kernel takes none of these for outgoing connections: while a server is down, a client that calls it
    again and again would else be connected to itself in the end, and keep the port."""
    for port in random.sample(_PORTS, _PORT_TRIALS):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("", port))
            return port
    raise DaemonFailed(f"no free TCP port from {_PORTS.start} to {_PORTS.stop - 1} in {_PORT_TRIALS} trials")


class Daemon:
    """One process, started and ended by its own id; the kernel ends it when the test process is killed.

    Start it from a thread that lives as long as it should: the kernel watches that thread."""

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
        self._environment = {**plain_environment(), **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id. Raises DaemonFailed when it was never started."""
        if self._process is None:
            raise DaemonFailed(f"{self.name} was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the run that ended last; None: it runs, or never did."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it; its output is appended to its log. Raises DaemonFailed when it runs already."""
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
                # A group of its own: Ctrl-C in the terminal is for the test process, which ends this one.
                process_group=0,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

    def stop(self, grace: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds. Does nothing when it does not run."""
        if self._process is None or not self.alive:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(_KILL_SECONDS)

    def tail(self, lines: int = 40) -> str:
        """The last lines of its log."""
        if not self.log.exists():
            return "(no log)"
        end = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return "\n".join(end.splitlines()[-lines:])

    def wait_until(self, ready: Callable[[], bool], what: str, deadline: float) -> None:
        """Wait at most `deadline` seconds until `ready`.

        Raises DaemonFailed with the end of the log when the time is over or the process ends before."""
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
