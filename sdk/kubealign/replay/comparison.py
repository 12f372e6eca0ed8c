"""The figures of two runs of the same steps. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: What a step took differs from run to run.
_TIMED = ("seconds/", "tokens_per_second", "refit/")
#: Of a line of metrics.jsonl, what is no figure.
_NOT_FIGURES = frozenset({"step", "fence", "time"})
#: Below this the relative difference of two figures says nothing: they are sums of what cancels out.
_NEXT_TO_NOTHING = 1e-6


@dataclass(frozen=True)
class Difference:
    """One figure of one step that is not equal bit for bit."""

    step: int
    figure: str
    recorded: float
    replayed: float

    @property
    def relative(self) -> float:
        """|a - b| / max(|a|, |b|); infinite where one of them alone is not finite; 0 for two that are next
        to nothing."""
        a, b = self.recorded, self.replayed
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        size = max(abs(a), abs(b))
        return 0.0 if size < _NEXT_TO_NOTHING else abs(a - b) / size


@dataclass(frozen=True)
class Comparison:
    """steps, figures: that were compared. differences: in the order of the steps, of one step by name."""

    steps: int
    figures: int
    differences: Sequence[Difference]

    @property
    def largest(self) -> Difference | None:
        return max(self.differences, key=lambda each: each.relative, default=None)

    def beyond(self, tolerance: float) -> Difference | None:
        """The first difference that rounding does not explain."""
        return next((each for each in self.differences if each.relative > tolerance), None)


def last_lines(lines: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Lines of a metrics.jsonl to the last one of each step that was trained."""
    return {int(line["step"]): line for line in lines if "seconds/step" in line}


def compare(
    recorded: Mapping[int, Mapping[str, Any]], replayed: Mapping[int, Mapping[str, Any]]
) -> Comparison:
    """Every figure that a replayed step reports with the recorded step's; one that this lacks counts as not a
    number. What only the recorded step reports belongs to how its batch was made. Steps that were not
    replayed are not compared."""
    figures = 0
    found = []
    for step in sorted(replayed):
        before = recorded.get(step, {})
        for name, value in sorted(replayed[step].items()):
            if name in _NOT_FIGURES or name.startswith(_TIMED):
                continue
            figures += 1
            difference = Difference(step, name, float(before.get(name, math.nan)), float(value))
            if not _same(difference.recorded, difference.replayed):
                found.append(difference)
    return Comparison(len(replayed), figures, found)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
