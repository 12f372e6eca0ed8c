"""Speed of one rollout worker's engine by the number of concurrent sequences."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class EngineSpeed:
    """Pass time as a piecewise linear function of the number of running sequences.

    points: (sequences running, seconds of a pass that makes one token for each), ascending, at least one.
    Interpolated linearly; constant below the first point; extrapolated above the last two. A point slower
    than one with more sequences was disturbed and gets the time of that point.

    max_sequences: maximum concurrent sequences. prompt_tokens_per_second: prefill speed; None: prompts
    cost nothing.
    """

    points: Sequence[tuple[int, float]]
    max_sequences: int
    prompt_tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if not self.points or any(running < 1 or seconds <= 0 for running, seconds in self.points):
            raise ValueError(f"points of {self.points}: at least one sequence, and some time, each")
        if self.max_sequences < 1:
            raise ValueError(f"max_sequences of {self.max_sequences}: at least 1")
        # Keep the faster of two points with the same number of sequences.
        ordered = sorted(dict(sorted(self.points, reverse=True)).items())
        lower_envelope = [*accumulate((seconds for _, seconds in reversed(ordered)), min)][::-1]
        object.__setattr__(self, "points", list(zip((n for n, _ in ordered), lower_envelope, strict=True)))

    def seconds_per_pass(self, running: int) -> float:
        """Return the seconds of one pass, which makes a token for each running sequence."""
        points = self.points
        index = bisect_left(points, (running, 0.0))
        if index == 0 or len(points) == 1:
            return points[0][1]
        (n, before), (m, after) = points[index - 1 : index + 1] if index < len(points) else points[-2:]
        return before + (running - n) * (after - before) / (m - n)

    def tokens_per_second(self, running: int) -> float:
        return running / self.seconds_per_pass(running)

    def prompt_seconds(self, tokens: float) -> float:
        return 0.0 if self.prompt_tokens_per_second is None else tokens / self.prompt_tokens_per_second
