"""The smallest merge patch (RFC 7386) from one object to another."""

from collections.abc import Mapping
from typing import Any


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from `before` to `after`; empty when nothing changes.

    A removed field is null in the patch; lists are replaced as a whole; a null in `after` counts as
    absent.
    """
    patch: dict[str, Any] = {name: None for name in before if after.get(name) is None}
    for name, new in after.items():
        old = before.get(name)
        if new is None or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inner = merge_patch(old, new)
            if inner:
                patch[name] = inner
        else:
            patch[name] = new
    return patch
