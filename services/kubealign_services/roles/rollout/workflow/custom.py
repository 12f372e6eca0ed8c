"""Custom workflow of a job: an async function that receives the episode."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from kubealign.spec.workflows.workflow import WorkflowFunction
from kubealign_services.generation.contract import EngineLost, RequestRefused
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.roles.rollout.workflow.workflow_thread import (
    WorkflowBlocked,
    WorkflowThread,
    WorkflowTimedOut,
)
from kubealign_services.scoring.functions.child_main import FunctionError, load_function
from kubealign_services.scoring.functions.function_process import function_target


class CustomWorkflow:
    """Calls the function and translates its errors.

    The functions of all responses run in one thread, beside the worker's event loop: one that blocks holds up
    other workflows, but neither the engine nor the worker. `close` ends the thread.
    """

    def __init__(
        self,
        function: Callable[[Episode], Coroutine[Any, Any, None]],
        called: str,
        thread: WorkflowThread | None = None,
    ) -> None:
        self._function, self._called = function, called
        self._thread = thread or WorkflowThread()

    @classmethod
    def from_spec(cls, spec: WorkflowFunction) -> "CustomWorkflow":
        """Load the function.

        Raises WorkflowFailed if it does not exist or is no async function of one argument.
        """
        target, description = function_target(spec)
        try:
            function = load_function(target)
        except FunctionError as refusal:
            raise WorkflowFailed(f"spec.rollout.workflow.function: {description} {refusal}") from refusal
        if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 1:
            raise WorkflowFailed(
                f"spec.rollout.workflow.function: {description} must be an async function of one argument, "
                f"async def {function.__name__}(episode)"
            )
        return cls(function, description)

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    async def __call__(self, episode: Episode) -> None:
        episode.call_engine_on(asyncio.get_running_loop())
        try:
            await self._thread.run(lambda: self._function(episode), episode.deadline)
        except (RequestRefused, EngineLost, WorkflowBlocked):
            raise
        except WorkflowTimedOut:
            raise WorkflowFailed(
                f"workflow {self._called} did not end before the deadline of its prompt "
                "(rollout.groupTimeoutSeconds), and was cancelled"
            ) from None
        # Any error of the function fails this response only.
        except Exception as error:
            raise WorkflowFailed(f"workflow {self._called} raised {type(error).__name__}: {error}") from error
        if not episode.sequences:
            raise WorkflowFailed(f"workflow {self._called} ended without a call of episode.generate")
