"""A workflow of the job's own: an async function that is given the episode."""

import inspect
from collections.abc import Awaitable, Callable

from kubealign.spec.workflow import WorkflowFunction
from kubealign_services.generation.contract import EngineLost, RequestRefused
from kubealign_services.rollout.workflow.contract import WorkflowFailed
from kubealign_services.rollout.workflow.episode import Episode
from kubealign_services.scoring.child import Refused, load
from kubealign_services.scoring.function_process import target_of


class CustomWorkflow:
    """Calls the function, and says what became of it."""

    def __init__(self, function: Callable[[Episode], Awaitable[None]], called: str) -> None:
        self._function, self._called = function, called

    @classmethod
    def of(cls, spec: WorkflowFunction) -> "CustomWorkflow":
        """Raises WorkflowFailed where the function cannot be had, or is no async function of one argument."""
        target, called = target_of(spec)
        try:
            function = load(target)
        except Refused as refusal:
            raise WorkflowFailed(f"spec.rollout.workflow.function: {called} {refusal}") from refusal
        if not inspect.iscoroutinefunction(function) or len(inspect.signature(function).parameters) != 1:
            raise WorkflowFailed(
                f"spec.rollout.workflow.function: {called} must be an async function of one argument, "
                f"async def {function.__name__}(episode)"
            )
        return cls(function, called)

    async def __call__(self, episode: Episode) -> None:
        try:
            await self._function(episode)
        except (RequestRefused, EngineLost):
            raise
        # Whatever it raises is what became of the response.
        except Exception as error:
            raise WorkflowFailed(f"workflow {self._called} raised {type(error).__name__}: {error}") from error
        if episode.transcript.turns == 0:
            raise WorkflowFailed(f"workflow {self._called} ended without a call of episode.generate")
