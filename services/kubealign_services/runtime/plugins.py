"""Loads plugins of other packages by entry point and creates them with the parameters of the job."""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from pydantic import ValidationError

from kubealign.spec.errors import format_value
from kubealign.spec.paths import format_path

ALGORITHMS, REWARDS, TRACKERS = "kubealign.algorithms", "kubealign.rewards", "kubealign.trackers"
TOOL_CALL_PARSERS = "kubealign.tool_call_parsers"

T = TypeVar("T")


class PluginError(LookupError):
    """A plugin is not installed, cannot be imported, or refuses its parameters.

    The message names the field of the job, the value found and the values allowed.
    """


def find_entry_point(group: str, name: str, field_path: str) -> EntryPoint:
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
            f"{field_path}: {name} is not installed where the job runs; installed for {group}: {installed}"
        )
    if len(named) > 1:
        raise PluginError(f"{field_path}: {name} is registered more than once: {' and '.join(sorted(named))}")
    return next(iter(named.values()))


def load_entry_point(group: str, name: str, field_path: str) -> Callable[..., Any]:
    """Import and return the object that the entry point names.

    Raises PluginError, also when the import fails.
    """
    entry = find_entry_point(group, name, field_path)
    try:
        loaded = entry.load()
    # Any exception of another package's import is reported.
    except Exception as error:
        raise PluginError(
            f"{field_path}: {name} ({entry.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise PluginError(
            f"{field_path}: {name} ({entry.value}) is {format_value(loaded)}, which cannot be called"
        )
    plugin: Callable[..., Any] = loaded
    return plugin


def check_signature(
    function: Callable[..., Any], positional_count: int, parameters: Mapping[str, Any], field_path: str
) -> None:
    """Check that a function accepts `positional_count` positional arguments and these named parameters.

    Args:
        field_path: The field of the job that holds the parameters.

    Raises:
        PluginError: The call is not possible. Lists the parameters that the function accepts.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*[None] * positional_count, **parameters)
    except TypeError as error:
        takes = ", ".join(map(str, list(signature.parameters.values())[positional_count:])) or "none"
        raise PluginError(f"{field_path}: {error}; it takes {takes}") from error


def instantiate(create: Callable[[], T], field_path: str) -> T:
    """Call `create` and return its result.

    Args:
        field_path: The field of the job that holds the parameters.

    Raises:
        PluginError: The plugin refused its parameters with pydantic's ValidationError, a ValueError, a
            TypeError or a LookupError.
    """
    try:
        return create()
    except ValidationError as error:
        raise PluginError("\n".join(_format_error(field_path, part) for part in error.errors())) from error
    except (ValueError, TypeError, LookupError) as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise PluginError(f"{field_path}: {kind}{error}") from error


def _format_error(field_path: str, error: Any) -> str:
    path = ".".join([field_path, *([format_path(error["loc"])] if error["loc"] else [])])
    value = "" if error["type"] == "missing" else f" (it holds {format_value(error['input'])})"
    return f"{path}: {error['msg']}{value}"
