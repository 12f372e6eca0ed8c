"""Tracker whose library runs in a process of another environment, which receives one JSON object per call."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob

_EXEC_MODULE = "kubealign_services.runtime.process.exec_with_parent"
_SCRIPT = Path(__file__).parent / "library" / "main.py"
_ANSWER_SECONDS = 120.0
_EXIT_SECONDS = 10.0
_LOG_TAIL_BYTES = 2000


class LibraryProcessFailed(Exception):
    """The library raised an exception, its process ended, or it did not answer in time."""


class LibraryClient:
    """Starts `library/main.py` with the interpreter of another environment, and calls it.

    Everything that the library prints is in library.log of the tracker's folder. The kernel ends the process
    with the thread that created it. Methods raise LibraryProcessFailed.

    Args:
        python: Interpreter of the environment with the library.
        library: Import name of the library, which `library/main.py` knows.
        settings: Keyword arguments of the library's writer, as JSON values.
        folder: Folder of the tracker's files, in which the process runs.
    """

    #: Time limit for each call, such as the one that contacts the library's server.
    answer_seconds = _ANSWER_SECONDS

    def __init__(
        self, python: Path, library: str, settings: Mapping[str, Any], job: TrackedJob, folder: Path
    ) -> None:
        self._library = library
        self._log = folder / "library.log"
        # -E -s: variables such as PYTHONPATH and the user's packages must not mix the two environments.
        program = [str(python), "-E", "-s", str(_SCRIPT), library]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _EXEC_MODULE, str(os.getpid()), *program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
            )
        document = {"name": job.name, "namespace": job.namespace, "spec": dict(job.spec)}
        self._call("open", job=document, folder=str(folder), settings=dict(settings))

    @property
    def pid(self) -> int:
        """Id of the library's process."""
        return self._process.pid

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        self._call("step", step=step, fence=fence, metrics=dict(metrics))

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._call("completions", step=step, rows=[dict(row) for row in rows])

    def close(self, outcome: RunOutcome) -> None:
        self._call("close", outcome=outcome)
        self._end()

    def _call(self, method: str, **arguments: Any) -> None:
        """Call a method of the library's writer and wait until it has returned."""
        assert self._process.stdin is not None
        line = json.dumps({"method": method, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            answer = json.loads(self._read_answer(method))
        except BrokenPipeError:
            raise self._failure(f"the process of {self._library} ended before {method}") from None
        if answer["error"] is not None:
            self._end()
            raise LibraryProcessFailed(answer["error"])

    def _read_answer(self, method: str) -> bytes:
        """Read one line of the process, within the time limit."""
        assert self._process.stdout is not None
        output, answer = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + self.answer_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._process.kill()
                    raise self._failure(
                        f"{self._library} did not answer {method} within {self.answer_seconds:g} s"
                    )
                piece = os.read(output, 1 << 16)
                if not piece:
                    raise self._failure(f"the process of {self._library} ended during {method}")
                answer += piece
        return answer

    def _failure(self, text: str) -> LibraryProcessFailed:
        """End the process, and return an exception with the end of its output."""
        self._end()
        output = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return LibraryProcessFailed(f"{text}; the end of {self._log.name}: {output}")

    def _end(self) -> None:
        """Close the pipes, upon which the process ends, and kill it if it does not."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    # The process has ended: nobody reads the rest.
                    continue
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
