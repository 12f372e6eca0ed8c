"""JSON merge patches (RFC 7386). Pure."""

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
