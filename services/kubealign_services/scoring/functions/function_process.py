"""Process that runs a Python function or tool, so that one that hangs or crashes can be killed.

The pipes carry JSON; nothing is pickled.
"""

import asyncio
import json
from types import TracebackType
from typing import Any, Self

from kubealign.spec.sections.rewards import RewardFunction
from kubealign.spec.workflows.workflow import ToolSpec, WorkerFunction
from kubealign_services.scoring.functions.errors import (
    BadReward,
    RewardError,
    RewardHung,
    RewardMissing,
    RewardNotImported,
    RewardRaised,
)
from kubealign_services.scoring.functions.protocol import FunctionFailure
from kubealign_services.scoring.functions.supervised_process import SupervisedProcess

#: Minimum timeout of the import in seconds: the function's dependencies may be large.
START_SECONDS = 60.0

_CHILD_MODULE = "kubealign_services.scoring.functions.child_main"

_ERRORS: dict[FunctionFailure, type[RewardError]] = {
    FunctionFailure.MISSING: RewardMissing,
    FunctionFailure.RAISED: RewardRaised,
    FunctionFailure.BAD: BadReward,
}


def function_target(spec: RewardFunction | WorkerFunction) -> tuple[dict[str, Any], str]:
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
        self._child: SupervisedProcess | None = None

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
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ensure_started(self) -> None:
        if self._child is not None and self._child.is_running:
            return
        await self.close()
        self._child = await SupervisedProcess.start(_CHILD_MODULE, self._label)
        seconds = max(START_SECONDS, self._timeout)
        try:
            await self._exchange(self._target, seconds, f"was not imported within {seconds:g} s")
        except RewardHung as error:
            raise RewardNotImported(str(error)) from error
        except RewardError:
            await self.close()
            raise

    async def _exchange(self, request: dict[str, Any], seconds: float, hung: str) -> dict[str, Any]:
        child = self._child
        assert child is not None
        try:
            async with asyncio.timeout(seconds):
                await child.write_line(json.dumps(request).encode())
                line = await child.read_line()
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
            await self.close()
            raise RewardRaised(f"{self._label} ended its process: {child.describe_exit()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise _ERRORS[FunctionFailure(reply["error"])](f"{self._label} {reply['message']}")
        return reply


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
