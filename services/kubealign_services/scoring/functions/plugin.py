"""Reward plugins of other packages.

The entry point names a class or a function. A class is instantiated once, with the parameters as keyword
arguments; the instance is called like a reward function: `f(prompts, responses, **columns)`. A function is
the reward itself, and takes the parameters as keyword arguments besides the columns; a parameter takes
precedence over a column of the same name.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kubealign_services.runtime.plugins import (
    REWARDS,
    PluginError,
    check_signature,
    find_entry_point,
    instantiate,
    load_entry_point,
)

__all__ = ["PluginError", "check_plugin_installed", "load_plugin_reward"]

_NAME, _PARAMETERS = "plugin.name", "plugin.parameters"


def check_plugin_installed(name: str, reward: str) -> None:
    """Check that the plugin is installed, without importing it. Raises PluginError."""
    find_entry_point(REWARDS, name, f"spec.rewards, {reward}: {_NAME}")


def load_plugin_reward(name: str, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the reward function. Raises PluginError for a missing plugin or rejected parameters."""
    target = load_entry_point(REWARDS, name, _NAME)
    if not inspect.isclass(target):
        # The first two parameters are the prompts and the responses; others may be columns.
        _check_names(target, parameters)
        return partial(target, **parameters) if parameters else target
    check_signature(target, 0, parameters, _PARAMETERS)
    reward: Any = instantiate(lambda: target(**parameters), _PARAMETERS)
    if not callable(reward):
        raise PluginError(f"{_NAME}: {name} makes a {type(reward).__name__}, which cannot be called")
    function: Callable[..., Any] = reward
    return function


def _check_names(function: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    signature = inspect.signature(function)
    try:
        signature.bind_partial(None, None, **parameters)
    except TypeError as error:
        takes = ", ".join(map(str, list(signature.parameters.values())[2:])) or "none"
        raise PluginError(f"{_PARAMETERS}: {error}; it takes {takes}") from error
