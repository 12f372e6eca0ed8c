"""Differences between two documents, field by field. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubealign.spec.paths import DocumentPath, format_path


@dataclass(frozen=True)
class FieldDifference:
    """A field whose value differs. path: its path, such as spec.rewards[0].weight; None: no value."""

    path: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.path} was {json.dumps(self.before)}, is {json.dumps(self.now)}"


def field_differences(before: Any, now: Any, path: DocumentPath = ()) -> Iterator[FieldDifference]:
    """Yield every value below `path` that differs between two JSON values, in the order of their fields.

    Lists of different lengths differ as a whole.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*before, *now)):
            yield from field_differences(before.get(key), now.get(key), (*path, key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from field_differences(old, new, (*path, index))
    elif before != now:
        yield FieldDifference(format_path(path), before, now)
