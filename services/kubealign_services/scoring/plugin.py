"""A reward of another package.

Its entry point names a class or a function. A class is made once, with the parameters as keyword arguments;
what it gives is called as reward functions are: `f(prompts, responses, **columns)`. A function is the reward
itself, and takes the parameters as keyword arguments beside the columns; one that is called like a column
stands for it.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kubealign_services.plugins import REWARDS, PluginError, check_takes, found, imported, made

__all__ = ["PluginError", "check_installed", "reward_of"]

_NAME, _PARAMETERS = "plugin.name", "plugin.parameters"


def check_installed(name: str, reward: str) -> None:
    """Whether it is there; nothing is imported. Raises PluginError."""
    found(REWARDS, name, f"spec.rewards, {reward}: {_NAME}")


def reward_of(name: str, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """The reward, ready to be called. Raises PluginError where it is not there or refuses the parameters."""
    called = imported(REWARDS, name, _NAME)
    if not inspect.isclass(called):
        # The first two are the prompts and the responses; what else it takes may be columns.
        _check_names(called, parameters)
        return partial(called, **parameters) if parameters else called
    check_takes(called, 0, parameters, _PARAMETERS)
    reward: Any = made(lambda: called(**parameters), _PARAMETERS)
    if not callable(reward):
        raise PluginError(f"{_NAME}: {name} makes a {type(reward).__name__}, which cannot be called")
    ready: Callable[..., Any] = reward
    return ready


def _check_names(function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind_partial(None, None, **parameters)
    except TypeError as error:
        takes = ", ".join(map(str, list(signature.parameters.values())[2:])) or "none"
        raise PluginError(f"{_PARAMETERS}: {error}; it takes {takes}") from error
