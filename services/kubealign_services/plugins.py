"""Loads plugins of other packages by entry point and creates them with the parameters of the job."""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from pydantic import ValidationError

from kubealign.spec.errors import shown
from kubealign.spec.paths import dotted

ALGORITHMS, REWARDS, TRACKERS = "kubealign.algorithms", "kubealign.rewards", "kubealign.trackers"

T = TypeVar("T")


class PluginError(LookupError):
    """A plugin is not installed, cannot be imported, or refuses its parameters. The message names the field
    of the job, the value found and the values allowed.
    """


def found(group: str, name: str, place: str) -> EntryPoint:
    """Return the entry point without importing it.

    Args:
        field_path: The field of the job that names the plugin, such as spec.algorithm.custom.name.

    Raises:
        PluginError: The plugin is not installed, or several are. Lists the installed names.
    """
    entries = entry_points(group=group)
    named = {entry.value: entry for entry in entries if entry.name == name}
    if not named:
        installed = ", ".join(sorted({entry.name for entry in entries})) or "nothing"
        raise PluginError(
            f"{place}: {name} is not installed where the job runs; installed for {group}: {installed}"
        )
    if len(named) > 1:
        raise PluginError(f"{place}: {name} is registered more than once: {' and '.join(sorted(named))}")
    return next(iter(named.values()))


def imported(group: str, name: str, place: str) -> Callable[..., Any]:
    """Import and return the object that the entry point names. Raises PluginError, also when the import
    fails.
    """
    entry = found(group, name, place)
    try:
        loaded = entry.load()
    # Any exception of another package's import is reported.
    except Exception as error:
        raise PluginError(
            f"{place}: {name} ({entry.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise PluginError(f"{place}: {name} ({entry.value}) is {shown(loaded)}, which cannot be called")
    plugin: Callable[..., Any] = loaded
    return plugin


def check_takes(called: Callable[..., Any], first: int, parameters: Mapping[str, Any], place: str) -> None:
    """Check that a function accepts `positional_count` positional arguments and these named parameters.

    Args:
        field_path: The field of the job that holds the parameters.

    Raises:
        PluginError: The call is not possible. Lists the parameters that the function accepts.
    """
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * first, **parameters)
    except TypeError as error:
        takes = ", ".join(map(str, list(signature.parameters.values())[first:])) or "none"
        raise PluginError(f"{place}: {error}; it takes {takes}") from error


def made(make: Callable[[], T], place: str) -> T:
    """Call `create` and return its result.

    Args:
        field_path: The field of the job that holds the parameters.

    Raises:
        PluginError: The plugin refused its parameters with pydantic's ValidationError, a ValueError, a
            TypeError or a LookupError.
    """
    try:
        return make()
    except ValidationError as error:
        raise PluginError("\n".join(_said(place, part) for part in error.errors())) from error
    except (ValueError, TypeError, LookupError) as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise PluginError(f"{place}: {kind}{error}") from error


def _said(field_path: str, error: Any) -> str:
    path = ".".join([field_path, *([dotted(error["loc"])] if error["loc"] else [])])
    value = "" if error["type"] == "missing" else f" (it holds {shown(error['input'])})"
    return f"{path}: {error['msg']}{value}"
