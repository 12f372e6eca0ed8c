"""A Python function called in a process of its own, so that one that hangs or crashes can be ended.

What goes over the pipes is JSON; nothing is pickled.
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

from kubealign.spec.rewards import RewardFunction
from kubealign.spec.workflow import ToolFunction, WorkflowFunction
from kubealign_services.scoring.errors import BadReward, RewardError, RewardHung, RewardMissing, RewardRaised
from kubealign_services.scoring.protocol import Failure

log = logging.getLogger(__name__)

#: Seconds that importing the function may take at least: what it imports may be large.
START_SECONDS = 60.0

# Longest reply: a number a response, some tens of bytes each.
_REPLY_BYTES = 2**26
_LOGGED_CHARACTERS = 2000

_ERRORS: dict[Failure, type[RewardError]] = {
    Failure.MISSING: RewardMissing,
    Failure.RAISED: RewardRaised,
    Failure.BAD: BadReward,
}


def target_of(spec: RewardFunction | ToolFunction | WorkflowFunction) -> tuple[dict[str, Any], str]:
    """(what the child is told, what errors call it) of a function that the spec names."""
    if spec.file is not None:
        return {"file": spec.file.path, "name": spec.file.name}, f"{spec.file.name} of {spec.file.path}"
    if spec.config_map is not None:
        held = spec.config_map
        return {"file": held.path, "name": held.function}, f"{held.function} of {held.path}"
    return {"module": str(spec.module)}, str(spec.module)


class FunctionProcess:
    """One function. Calls wait for one another; each has `timeout_seconds` from when the function begins.

    Use it as an async context manager, or `start` and `close` it. target: as `scoring.child` takes it. who:
    the function, for errors.
    """

    def __init__(self, target: dict[str, Any], who: str, timeout_seconds: float) -> None:
        self._target = target
        self._who = who
        self._timeout = timeout_seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Import the function. Raises RewardMissing, or RewardHung where that takes longer than a minute
        or the timeout, whichever is longer."""
        async with self._lock:
            await self._started()

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The child's reply. Raises RewardMissing, RewardRaised, RewardHung or BadReward; after any of them
        the next call starts afresh where it has to."""
        async with self._lock:
            await self._started()
            return await self._ask(
                request, self._timeout, f"did not answer within {self._timeout:g} s (its timeoutSeconds)"
            )

    async def close(self) -> None:
        """End the process. A call that is waiting fails."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if process.stdin is not None:
                process.stdin.close()
        if self._output is not None:
            await self._output
            self._output = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _started(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        await self.close()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kubealign_services.scoring.child",
            json.dumps(self._target),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_REPLY_BYTES,
            # Ended with whatever it started itself.
            start_new_session=True,
        )
        self._output = asyncio.create_task(self._log_output(self._process))
        seconds = max(START_SECONDS, self._timeout)
        try:
            await self._ask(None, seconds, f"was not imported within {seconds:g} s")
        except RewardError:
            await self.close()
            raise

    async def _ask(self, request: dict[str, Any] | None, seconds: float, hung: str) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                if request is not None:
                    process.stdin.write(json.dumps(request).encode() + b"\n")
                    await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            await self.close()
            raise RewardHung(f"{self._who} {hung}, and was stopped") from None
        except (ConnectionError, BrokenPipeError):
            line = b""
        except BaseException:
            # Cancelled with an answer still to come: the next call must not take it for its own.
            await self.close()
            raise
        if not line.endswith(b"\n"):
            raise RewardRaised(f"{self._who} ended its process: {await self._end_of(process)}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise _ERRORS[Failure(reply["error"])](f"{self._who} {reply['message']}")
        return reply

    async def _end_of(self, process: asyncio.subprocess.Process) -> str:
        await self.close()
        code = process.returncode
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    async def _log_output(self, process: asyncio.subprocess.Process) -> None:
        """What the function prints, a log line a line."""
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
        log.info("%s printed: %s", self._who, line.decode(errors="replace")[:_LOGGED_CHARACTERS])
