"""Lenient access to untrusted JSON: a value of the wrong type counts as absent."""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

_EMPTY: Mapping[str, Any] = MappingProxyType({})


def mapping(value: object) -> Mapping[str, Any]:
    """Return the object, else an empty one."""
    return value if isinstance(value, Mapping) else _EMPTY


def get_path(value: object, *path: str) -> object:
    """Return the value at a path of object fields, or None."""
    for name in path:
        value = mapping(value).get(name)
    return value


def text(value: object) -> str:
    """Return the text, else an empty one."""
    return value if isinstance(value, str) else ""


def items(value: object) -> tuple[Mapping[str, Any], ...]:
    """Return the objects of a list."""
    return tuple(mapping(item) for item in value) if isinstance(value, list | tuple) else ()


def texts(value: object) -> tuple[str, ...]:
    """Return the texts of a list."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list | tuple) else ()


def integer(value: object) -> int | None:
    """Return the integer, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(value: object) -> float | None:
    """Return the finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if abs(result) < float("inf") else None


def labels(value: object) -> dict[str, str]:
    """Return the pairs whose key and value are text."""
    return {
        key: item for key, item in mapping(value).items() if isinstance(key, str) and isinstance(item, str)
    }


def timestamp(value: object) -> datetime | None:
    """Return the time in UTC, from a Kubernetes timestamp or a datetime; naive times count as UTC."""
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
