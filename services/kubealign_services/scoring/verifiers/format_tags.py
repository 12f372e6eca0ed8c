"""Tagged sections of responses."""

import re
from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import FormatTagsVerifier


class FormatTags:
    """1 for a response of tagged sections, or the share of tags that occur exactly once."""

    def __init__(self, spec: FormatTagsVerifier) -> None:
        self._partial = spec.partial
        self._marks = [mark for tag in spec.tags for mark in (f"<{tag}>", f"</{tag}>")]
        sections = (rf"<{re.escape(tag)}>.*?</{re.escape(tag)}>\s*" for tag in spec.tags)
        self._form = re.compile(r"\s*" + "".join(sections), re.DOTALL)

    def score(self, response: str, row: Mapping[str, Any]) -> float | None:
        once = sum(response.count(mark) == 1 for mark in self._marks)
        if self._partial:
            return once / len(self._marks)
        return float(once == len(self._marks) and self._form.fullmatch(response) is not None)
