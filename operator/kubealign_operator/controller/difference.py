"""The smallest merge patch (RFC 7386) from one object to another."""

from collections.abc import Mapping
from typing import Any


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Empty when there is nothing to change. A field that should go is null in the patch; lists are replaced
    whole; a null in `after` counts as not there."""
    patch: dict[str, Any] = {name: None for name in before if after.get(name) is None}
    for name, wanted in after.items():
        held = before.get(name)
        if wanted is None or held == wanted:
            continue
        if isinstance(held, Mapping) and isinstance(wanted, Mapping):
            inner = difference(held, wanted)
            if inner:
                patch[name] = inner
        else:
            patch[name] = wanted
    return patch
