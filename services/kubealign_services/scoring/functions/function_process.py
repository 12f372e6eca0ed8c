"""Process that runs a Python function or tool, so that one that hangs or crashes can be killed.

The pipes carry JSON; nothing is pickled.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from types import TracebackType
from typing import Any, Self

from kubealign.spec.sections.rewards import RewardFunction
from kubealign.spec.sections.workflow import ToolSpec, WorkflowFunction
from kubealign.spec.tools.functions import ToolFunction
from kubealign_services.scoring.functions.errors import (
    BadReward,
    RewardError,
    RewardHung,
    RewardMissing,
    RewardNotImported,
    RewardRaised,
)
from kubealign_services.scoring.functions.protocol import FunctionFailure

log = logging.getLogger(__name__)

#: Minimum timeout of the import in seconds: the function's dependencies may be large.
START_SECONDS = 60.0

# Maximum reply size: some tens of bytes per response.
_REPLY_BYTES = 2**26
_LOGGED_CHARACTERS = 2000
# The supervisor kills for a second at most; after its end the output has been read, or another process holds
# its pipe.
_END_SECONDS = 2.0
_OUTPUT_SECONDS = 1.0

_ERRORS: dict[FunctionFailure, type[RewardError]] = {
    FunctionFailure.MISSING: RewardMissing,
    FunctionFailure.RAISED: RewardRaised,
    FunctionFailure.BAD: BadReward,
}


def function_target(spec: RewardFunction | ToolFunction | WorkflowFunction) -> tuple[dict[str, Any], str]:
    """Return (target for the child process, description for errors) of a function that the spec names."""
    if spec.file is not None:
        return {"file": spec.file.path, "name": spec.file.name}, f"{spec.file.name} of {spec.file.path}"
    if spec.config_map is not None:
        source = spec.config_map
        return {"file": source.path, "name": source.function}, f"{source.function} of {source.path}"
    return {"module": str(spec.module)}, str(spec.module)


class FunctionProcess:
    """One function in a process of its own.

    Calls are serialised; each has `timeout_seconds` from its own start.

    Use as an async context manager, or call `start` and `close`. target: as in protocol.py. label:
    description of the function for errors.
    """

    def __init__(self, target: dict[str, Any], label: str, timeout_seconds: float) -> None:
        self._target = target
        self._label = label
        self._timeout = timeout_seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Import the function.

        Raises RewardMissing, or RewardNotImported where the import takes longer than a minute or the timeout,
        whichever is longer.
        """
        async with self._lock:
            await self._ensure_started()

    async def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the child's reply.

        Raises RewardMissing, RewardRaised, RewardHung or BadReward; after any of them the next call
        restarts the process where necessary.
        """
        async with self._lock:
            await self._ensure_started()
            return await self._exchange(
                request, self._timeout, f"did not answer within {self._timeout:g} s (its timeoutSeconds)"
            )

    async def close(self) -> None:
        """Kill the process and its descendants within some seconds. A call in progress fails."""
        process, self._process = self._process, None
        output, self._output = self._output, None
        if process is not None and process.returncode is None:
            await self._kill(process)
        if output is not None:
            # A process that could not be killed may keep standard error open.
            await asyncio.wait([output], timeout=_OUTPUT_SECONDS)
            output.cancel()
        if process is not None:
            # Closes the pipes, also those that another process keeps open at its end.
            process._transport.close()  # type: ignore[attr-defined]

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        """Have the supervisor kill the function and its descendants; kill the supervisor if it does not."""
        # Not process.terminate, which reaps an ended process in the event loop's place and loses its code.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        if await _has_ended(process):
            return
        log.warning("%s: its supervisor did not end, and is killed", self._label)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if not await _has_ended(process):
            log.error("%s: process %s cannot be killed", self._label, process.pid)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ensure_started(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        await self.close()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kubealign_services.scoring.functions.child_main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_REPLY_BYTES,
            # Its own session, so that a signal to the worker's group does not reach it.
            start_new_session=True,
        )
        self._output = asyncio.create_task(self._log_output(self._process))
        seconds = max(START_SECONDS, self._timeout)
        try:
            await self._exchange(self._target, seconds, f"was not imported within {seconds:g} s")
        except RewardHung as error:
            raise RewardNotImported(str(error)) from error
        except RewardError:
            await self.close()
            raise

    async def _exchange(self, request: dict[str, Any], seconds: float, hung: str) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            await self.close()
            raise RewardHung(f"{self._label} {hung}, and was stopped") from None
        except (ConnectionError, BrokenPipeError):
            line = b""
        except BaseException:
            # Cancelled with a reply outstanding: the next call must not receive that reply.
            await self.close()
            raise
        if not line.endswith(b"\n"):
            raise RewardRaised(f"{self._label} ended its process: {await self._describe_exit(process)}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise _ERRORS[FunctionFailure(reply["error"])](f"{self._label} {reply['message']}")
        return reply

    async def _describe_exit(self, process: asyncio.subprocess.Process) -> str:
        await self.close()
        code = process.returncode or 0
        # The supervisor exits with 128 + the number of the signal that ended the function.
        number = -code if code < 0 else code - 128
        if number in signal.valid_signals():
            return f"signal {signal.Signals(number).name}"
        return f"exit code {code}"

    async def _log_output(self, process: asyncio.subprocess.Process) -> None:
        """Log each line that the function prints."""
        assert process.stderr is not None
        rest = b""
        while chunk := await process.stderr.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_LOGGED_CHARACTERS:]
            for line in lines:
                self._log_line(line)
        if rest:
            self._log_line(rest)

    def _log_line(self, line: bytes) -> None:
        log.info("%s printed: %s", self._label, line.decode(errors="replace")[:_LOGGED_CHARACTERS])


async def _has_ended(process: asyncio.subprocess.Process) -> bool:
    """Wait some seconds for the end of a process. Return False if it still runs."""
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        # Before Python 3.13 the wait also lasts while another process keeps a pipe open.
        return process.returncode is not None
    return True


class ToolProcess(FunctionProcess):
    """One tool, in a process of its own."""

    def __init__(self, spec: ToolSpec) -> None:
        target, description = function_target(spec.function)
        super().__init__(target, f"tool {spec.name}: {description}", spec.timeout_seconds)

    async def invoke(self, argument: str) -> str:
        """Return the tool's output.

        Raises RewardError where it raises, hangs, or returns anything but text or a number.
        """
        reply = await self.request({"argument": argument})
        return str(reply["answer"])
