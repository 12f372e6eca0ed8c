"""Child process that runs code of users, so that code that hangs or crashes can be killed.

The pipes carry one JSON object per line; nothing is pickled.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Self

log = logging.getLogger(__name__)

# Maximum reply size: some tens of bytes per response.
_REPLY_BYTES = 2**26
_LOGGED_CHARACTERS = 2000
# The supervisor kills for a second at most; after its end the output has been read, or another process holds
# its pipe.
_END_SECONDS = 2.0
_OUTPUT_SECONDS = 1.0


class SupervisedProcess:
    """Child process that runs a Python module whose `main` calls `reaper.run_and_kill_descendants`.

    Lines that it prints to standard error are logged.
    """

    def __init__(self, process: asyncio.subprocess.Process, label: str) -> None:
        self._process, self._label = process, label
        self._output = asyncio.create_task(self._log_output())

    @classmethod
    async def start(cls, module: str, label: str) -> Self:
        """Start the module. `label`: description of the process for the log."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_REPLY_BYTES,
            # Its own session, so that a signal to the worker's group does not reach it.
            start_new_session=True,
        )
        return cls(process, label)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def write_line(self, line: bytes) -> None:
        """Write a line. Raises ConnectionError where the process has closed its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        await self._process.stdin.drain()

    async def read_line(self) -> bytes:
        """Read a line with its end; without one where the process has ended."""
        assert self._process.stdout is not None
        return await self._process.stdout.readline()

    async def close(self) -> None:
        """Kill the process and its descendants within some seconds."""
        process = self._process
        if process.returncode is None:
            await self._kill()
        # A process that could not be killed may keep standard error open.
        await asyncio.wait([self._output], timeout=_OUTPUT_SECONDS)
        self._output.cancel()
        # Closes the pipes, also those that another process keeps open at its end.
        process._transport.close()  # type: ignore[attr-defined]

    def describe_exit(self) -> str:
        """Return the exit code, or the signal that ended the process."""
        code = self._process.returncode or 0
        # The supervisor exits with 128 + the number of the signal that ended the function.
        number = -code if code < 0 else code - 128
        if number in signal.valid_signals():
            return f"signal {signal.Signals(number).name}"
        return f"exit code {code}"

    async def _kill(self) -> None:
        """Have the supervisor kill the function and its descendants; kill the supervisor if it does not."""
        process = self._process
        # Not process.terminate, which reaps an ended process in the event loop's place and loses its code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        if await self._has_ended():
            return
        log.warning("%s: its supervisor did not end, and is killed", self._label)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if not await self._has_ended():
            log.error("%s: process %s cannot be killed", self._label, process.pid)

    async def _has_ended(self) -> bool:
        """Wait some seconds for the end of the process. Return False if it still runs."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            # Before Python 3.13 the wait also lasts while another process keeps a pipe open.
            return self._process.returncode is not None
        return True

    async def _log_output(self) -> None:
        """Log each line that the process prints."""
        assert self._process.stderr is not None
        rest = b""
        while chunk := await self._process.stderr.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LOGGED_CHARACTERS:]
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        log.info("%s printed: %s", self._label, line.decode(errors="replace")[:_LOGGED_CHARACTERS])
