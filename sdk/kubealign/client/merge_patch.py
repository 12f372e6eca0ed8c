"""JSON merge patches (RFC 7386). Pure."""

from collections.abc import Mapping
from typing import Any


def merged(held: Any, patch: Any) -> Any:
    """What is held, with the patch laid over it: objects field by field, null takes a field away, anything
    else replaces. Neither is changed."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(held) if isinstance(held, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result
