"""`kubealign` commands that start with the libraries of the role processes already imported.

Behaves like `subprocess.Popen`, see `support.preloaded_server`.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_SERVER = Path(__file__).with_name("preloaded_server.py")
#: Timeout of the server's start, which imports the libraries.
_START_SECONDS = 120.0

_lock = threading.Lock()
_requests: socket.socket | None = None


class PreloadedProcess:
    """A running command, with the output in a file."""

    def __init__(self, command: Sequence[str], output: IO[str]) -> None:
        self._command = list(command)
        self._exit_code: int | None = None
        self._exit_pipe, write_end = os.pipe()
        request = {"arguments": self._command, "environment": dict(os.environ), "folder": str(Path.cwd())}
        try:
            with _lock:
                server = _server()
                socket.send_fds(server, [json.dumps(request).encode()], [output.fileno(), write_end])
                self.pid = int(server.recv(64))
        finally:
            os.close(write_end)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal number; None while the command runs."""
        return self._read_exit_code(0)

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        code = self._read_exit_code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self._command, timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL, unless the command has ended."""
        self.send_signal(signal.SIGKILL)

    def _read_exit_code(self, timeout: float) -> int | None:
        if self._exit_code is None and select.select([self._exit_pipe], [], [], timeout)[0]:
            text = os.read(self._exit_pipe, 64)
            os.close(self._exit_pipe)
            assert text, f"the server of {self._command} has ended"
            self._exit_code = int(text)
        return self._exit_code


def _server() -> socket.socket:
    """Return the connection to this process's server, which is started by the first call."""
    global _requests
    if _requests is None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, str(_SERVER), str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        ours.settimeout(_START_SECONDS)
        atexit.register(_end, ours, process)
        _requests = ours
    return _requests


def _end(requests: socket.socket, server: subprocess.Popen[bytes]) -> None:
    requests.close()
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
