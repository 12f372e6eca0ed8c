"""The sandbox service as a process of its own, and its contract."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import yaml
from jsonschema import Draft202012Validator

from support.free_address import free_port

CONTRACT: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "docs" / "sandbox-service.openapi.yaml").read_text()
)
MODULE = "kubealign_services.scoring.sandbox_server.main"
LIMITS = {
    "secondsPerTest": 20,
    "secondsPerResponse": 40,
    "memoryMib": 256,
    "outputBytes": 4096,
    "processes": 8,
}
#: Memory by which `wait_until_marked` tells a program that runs.
MARKING_BYTES = 100_000_000
_SECONDS = 60.0
_POLL_SECONDS = 0.02


def conforms(schema: str, value: Any) -> bool:
    """Return True if a value is of a schema of the contract."""
    return Draft202012Validator(CONTRACT | {"$ref": f"#/components/schemas/{schema}"}).is_valid(value)


class SandboxServiceProcess:
    """The command, on a port of loopback that it keeps when it is started again.

    Args:
        output: File for its logs.
        options: Further arguments.
        variables: Variables of its environment besides those of this process.
        port: Port; None: a free one.
        tls: TLS context of its clients; None: it serves HTTP.
    """

    def __init__(
        self,
        output: Path,
        *options: str,
        variables: Mapping[str, str] | None = None,
        port: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        self.tls = tls
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}"
        self.output = output
        self._command = [sys.executable, "-m", MODULE, "--port", str(self.port), *options]
        self._environment = os.environ | dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """Start the command, and wait until it serves."""
        self._start()
        self._wait("it serves", lambda health: health is not None)

    def run_to_end(self) -> int:
        """Start the command, wait until it has ended, and return its exit code."""
        self._start()
        try:
            return self.process.wait(_SECONDS)
        finally:
            self.process.kill()

    def wait_for_programs(self, count: int | None = None, *, at_least: int = 0) -> None:
        """Wait until so many programs run or wait; None: any number that is not below `at_least`."""
        what = f"{at_least} programs or more run" if count is None else f"{count} programs run"

        def is_reached(health: Any) -> bool:
            programs = -1 if health is None else health["programs"]
            return programs >= at_least and count in (None, programs)

        self._wait(what, is_reached)

    def wait_until_marked(self, count: int) -> None:
        """Wait until as many programs run that have MARKING_BYTES."""
        self._wait(f"{count} programs have their memory", lambda health: self._marked() == count)

    def kill(self) -> None:
        """End the process by SIGKILL, and wait until its sandboxes have ended."""
        sandboxes = self.sandboxes()
        self.process.kill()
        self.process.wait(_SECONDS)
        _, left = psutil.wait_procs(sandboxes, _SECONDS)
        assert not left

    def stop(self) -> int:
        """End the process by SIGTERM, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_SECONDS)

    def sandboxes(self) -> list[psutil.Process]:
        """Return the processes of its sandboxes."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def health(self) -> Any:
        """Return the answer of /healthz; None without one."""
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=5, context=self.tls) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            return None

    def _marked(self) -> int:
        """Return the number of processes in sandboxes that have MARKING_BYTES."""
        count = 0
        for process in self.sandboxes():
            with contextlib.suppress(psutil.NoSuchProcess):
                count += process.memory_info().rss > MARKING_BYTES
        return count

    def _start(self) -> None:
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(self._command, stderr=output, env=self._environment)

    def _wait(self, what: str, is_reached: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not is_reached(self.health()):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, f"not within {_SECONDS:g} s: {what}"
            time.sleep(_POLL_SECONDS)
