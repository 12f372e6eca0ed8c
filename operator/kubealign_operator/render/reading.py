"""Reading JSON that may hold anything: what is not of the wanted kind counts as not there."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def mapping(value: object) -> Mapping[str, Any]:
    """The object, else an empty one."""
    return value if isinstance(value, Mapping) else _NOTHING


def inside(value: object, *path: str) -> object:
    """What lies at the path of object fields; None: nothing does."""
    for name in path:
        value = mapping(value).get(name)
    return value


def text(value: object) -> str:
    """The text, else an empty one."""
    return value if isinstance(value, str) else ""


def items(value: object) -> tuple[Mapping[str, Any], ...]:
    """The objects of a list."""
    return tuple(mapping(item) for item in value) if isinstance(value, list | tuple) else ()


def whole(value: object) -> int | None:
    """The integer, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """The finite number, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        held = float(value)
    except OverflowError:
        return None
    return held if abs(held) < float("inf") else None


def labels(value: object) -> dict[str, str]:
    """The pairs of text and text."""
    return {
        key: held for key, held in mapping(value).items() if isinstance(key, str) and isinstance(held, str)
    }


def moment(value: object) -> datetime | None:
    """A time, as Kubernetes writes it or as a datetime; one without a zone is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        return None
