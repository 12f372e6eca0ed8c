"""What other packages add: found by entry point, made with the parameters that the job gives."""

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
    """A plugin is not installed, cannot be imported, or refuses what it is given. The message names the
    place in the job, what it held and what it may hold."""


def found(group: str, name: str, place: str) -> EntryPoint:
    """The entry point, not imported yet. place: the field of the job that names it, such as
    spec.algorithm.custom.name. Raises PluginError with the names that are installed."""
    entries = entry_points(group=group)
    named = {entry.value: entry for entry in entries if entry.name == name}
    if not named:
        there = ", ".join(sorted({entry.name for entry in entries})) or "nothing"
        raise PluginError(f"{place}: {name} is not installed where the job runs; of {group} there is {there}")
    if len(named) > 1:
        raise PluginError(f"{place}: {name} stands for more than one thing: {' and '.join(sorted(named))}")
    return next(iter(named.values()))


def imported(group: str, name: str, place: str) -> Callable[..., Any]:
    """What the entry point names. Raises PluginError, also where importing it fails."""
    entry = found(group, name, place)
    try:
        loaded = entry.load()
    # Whatever another package's import raises is the answer.
    except Exception as error:
        raise PluginError(
            f"{place}: {name} ({entry.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise PluginError(f"{place}: {name} ({entry.value}) is {shown(loaded)}, which cannot be called")
    made: Callable[..., Any] = loaded
    return made


def check_takes(called: Callable[..., Any], first: int, parameters: Mapping[str, Any], place: str) -> None:
    """Whether it can be called with so many things and these named parameters. place: of the parameters.
    Raises PluginError that says what it takes."""
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
    """What `make` gives. place: of the parameters that it reads. Raises PluginError where it refuses them, by
    pydantic's ValidationError, a ValueError or a TypeError."""
    try:
        return make()
    except ValidationError as error:
        raise PluginError("\n".join(_said(place, part) for part in error.errors())) from error
    except (ValueError, TypeError, LookupError) as error:
        kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
        raise PluginError(f"{place}: {kind}{error}") from error


def _said(place: str, error: Any) -> str:
    path = ".".join([place, *([dotted(error["loc"])] if error["loc"] else [])])
    held = "" if error["type"] == "missing" else f" (it holds {shown(error['input'])})"
    return f"{path}: {error['msg']}{held}"
