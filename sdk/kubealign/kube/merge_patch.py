"""JSON merge patches (RFC 7386): application of a patch, and the smallest patch between two objects. Pure."""

from collections.abc import Mapping
from typing import Any


def apply_merge_patch(document: Any, patch: Any) -> Any:
    """Return `document` with the patch applied; neither argument is changed.

    Objects are merged field by field, null removes a field, and any other value replaces the field.
    """
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = apply_merge_patch(result.get(name), value)
    return result


def merge_patch_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest merge patch from `before` to `after`; empty when nothing changes.

    A removed field is null in the patch; lists are replaced as a whole; a null in `after` counts as
    absent.
    """
    patch: dict[str, Any] = {name: None for name in before if after.get(name) is None}
    for name, new in after.items():
        old = before.get(name)
        if new is None or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            inner = merge_patch_between(old, new)
            if inner:
                patch[name] = inner
        else:
            patch[name] = new
    return patch
