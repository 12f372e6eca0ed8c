"""Custom workflow of a job: an async function that receives the episode."""

import inspect
from collections.abc import Awaitable, Callable

from kubealign.spec.sections.workflow import WorkflowFunction
from kubealign_services.generation.contract import EngineLost, RequestRefused
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.scoring.functions.child_main import FunctionError, load_function
from kubealign_services.scoring.functions.function_process import function_target


class CustomWorkflow:
    """Calls the function and translates its errors."""

    def __init__(self, function: Callable[[Episode], Awaitable[None]], called: str) -> None:
        self._function, self._called = function, called

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

    async def __call__(self, episode: Episode) -> None:
        try:
            await self._function(episode)
        except (RequestRefused, EngineLost):
            raise
        # Any error of the function fails this response only.
        except Exception as error:
            raise WorkflowFailed(f"workflow {self._called} raised {type(error).__name__}: {error}") from error
        if episode.transcript.turns == 0:
            raise WorkflowFailed(f"workflow {self._called} ended without a call of episode.generate")
