"""Creates the environments of a job."""

from collections.abc import Callable
from typing import Any

from kubealign.spec.base import field_alias
from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.adapters.gymnasium import GymnasiumGame
from kubealign_services.environments.adapters.open_env import OpenEnvSession
from kubealign_services.environments.adapters.reasoning_gym import ReasoningGymTask
from kubealign_services.environments.adapters.text_arena import TextArenaGame
from kubealign_services.environments.contract import Environment, EnvironmentFailed
from kubealign_services.scoring.functions.child_main import FunctionError, load_function
from kubealign_services.scoring.functions.function_process import function_target

_ADAPTERS: dict[str, Callable[..., Environment]] = {
    "reasoning_gym": ReasoningGymTask,
    "gymnasium": GymnasiumGame,
    "text_arena": TextArenaGame,
    "open_env": OpenEnvSession,
}


def describe_environment(spec: EnvironmentSpec) -> str:
    """Return the environment's kind and name for errors."""
    kind = field_alias(EnvironmentSpec, spec.kind)
    if spec.function is not None:
        return f"environment {function_target(spec.function)[1]}"
    settings = getattr(spec, spec.kind)
    name = next(getattr(settings, field) for field in ("dataset", "id", "url") if hasattr(settings, field))
    return f"environment {kind} {name}"


def load_environment(spec: EnvironmentSpec) -> Callable[[], Environment]:
    """Return a function that creates an environment for one episode.

    Raises:
        EnvironmentFailed: The class or function of the job cannot be loaded. Permanent.
    """
    if spec.function is None:
        adapter, settings = _ADAPTERS[spec.kind], getattr(spec, spec.kind)
        return lambda: adapter(settings, spec.parameters)
    target, _ = function_target(spec.function)
    try:
        create: Callable[..., Any] = load_function(target)
    except FunctionError as error:
        raise EnvironmentFailed(str(error), permanent=True) from error
    return lambda: create(**spec.parameters)
