"""Tagged sections of responses."""

import re
from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import FormatTagsVerifier
from kubealign_services.scoring.functions.results import RewardResult


class FormatTags:
    """1 for a response of tagged sections, or the share of tags that occur exactly once."""

    def __init__(self, spec: FormatTagsVerifier) -> None:
        self._partial = spec.partial
        self._marks = [mark for tag in spec.tags for mark in (f"<{tag}>", f"</{tag}>")]
        sections = (rf"<{re.escape(tag)}>.*?</{re.escape(tag)}>\s*" for tag in spec.tags)
        self._form = re.compile(r"\s*" + "".join(sections), re.DOTALL)

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        wrong = [mark for mark in self._marks if response.count(mark) != 1]
        ordered = not wrong and self._form.fullmatch(response) is not None
        explanation = "" if ordered else "text outside the sections, or their order is wrong"
        if wrong:
            explanation = f"not exactly once: {', '.join(wrong)}"
        share = (len(self._marks) - len(wrong)) / len(self._marks)
        return RewardResult(share if self._partial else float(ordered), explanation=explanation)
