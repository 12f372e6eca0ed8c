"""Thread with an event loop of its own for the workflows of a job, whose code may block."""

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

#: Seconds for which the thread may be blocked after the deadline of a workflow.
CANCEL_SECONDS = 10.0


class WorkflowBlocked(RuntimeError):
    """A workflow blocks the thread of all workflows, so that none can be cancelled: the process must be
    restarted.
    """


class WorkflowTimedOut(Exception):
    """A workflow was cancelled at its deadline."""


class WorkflowThread:
    """Event loop in a daemon thread. It starts with the first workflow and ends with `close`.

    Args:
        cancel_seconds: Seconds for which the thread may be blocked after the deadline of a workflow.
    """

    def __init__(self, cancel_seconds: float = CANCEL_SECONDS) -> None:
        self._cancel_seconds = cancel_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, workflow: Callable[[], Coroutine[Any, Any, None]], deadline: float | None) -> None:
        """Run a workflow on the thread, and raise its error.

        Args:
            deadline: time.monotonic() at which the workflow is cancelled; None: never.

        Raises:
            WorkflowTimedOut: The workflow was cancelled at the deadline.
            WorkflowBlocked: The thread is blocked after that.
        """
        loop = self._start()
        waiting = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(workflow(), loop))
        try:
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            await asyncio.wait([waiting], timeout=timeout)
            if waiting.done():
                return waiting.result()
        finally:
            # Cancels the workflow's task if it still runs.
            waiting.cancel()
        await self._check_not_blocked(loop)
        raise WorkflowTimedOut

    def close(self) -> None:
        """End the thread once it is not blocked."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = self._thread = None

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run_loop, args=(self._loop,), name="workflows", daemon=True
            )
            self._thread.start()
        return self._loop

    async def _check_not_blocked(self, thread_loop: asyncio.AbstractEventLoop) -> None:
        """Wait until the thread has run what was scheduled before. Raises WorkflowBlocked."""
        loop, has_run = asyncio.get_running_loop(), asyncio.Event()
        thread_loop.call_soon_threadsafe(loop.call_soon_threadsafe, has_run.set)
        try:
            async with asyncio.timeout(self._cancel_seconds):
                await has_run.wait()
        except TimeoutError:
            raise WorkflowBlocked(
                f"the thread of the workflows has been blocked for {self._cancel_seconds:g} s after the "
                f"deadline of a workflow:\n{self._describe_stack()}"
            ) from None

    def _describe_stack(self) -> str:
        identity = self._thread.ident if self._thread is not None else None
        frame = sys._current_frames().get(identity or 0)
        return "unknown" if frame is None else "".join(traceback.format_stack(frame))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
