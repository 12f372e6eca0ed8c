"""How fast one rollout worker's engine is, by the number of sequences that it runs at the same time."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class EngineSpeed:
    """points: (sequences running, seconds of a pass that makes one token for each), ascending, at least one.
    Between two points seconds grow evenly; below the first they stay; above the last they go on as between
    the last two. A point that took longer than one with more sequences was disturbed: it takes as long as
    that one.

    max_sequences: run at the same time. prompt_tokens_per_second: of prompts; None: they cost nothing.
    """

    points: Sequence[tuple[int, float]]
    max_sequences: int
    prompt_tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if not self.points or any(running < 1 or seconds <= 0 for running, seconds in self.points):
            raise ValueError(f"points of {self.points}: at least one sequence, and some time, each")
        if self.max_sequences < 1:
            raise ValueError(f"max_sequences of {self.max_sequences}: at least 1")
        # Of two that were measured alike the quicker one.
        ordered = sorted(dict(sorted(self.points, reverse=True)).items())
        least = [*accumulate((seconds for _, seconds in reversed(ordered)), min)][::-1]
        object.__setattr__(self, "points", list(zip((n for n, _ in ordered), least, strict=True)))

    def pass_seconds(self, running: int) -> float:
        """Of one token for each of so many sequences."""
        points = self.points
        at = bisect_left(points, (running, 0.0))
        if at == 0 or len(points) == 1:
            return points[0][1]
        (n, before), (m, after) = points[at - 1 : at + 1] if at < len(points) else points[-2:]
        return before + (running - n) * (after - before) / (m - n)

    def tokens_per_second(self, running: int) -> float:
        return running / self.pass_seconds(running)

    def prompt_seconds(self, tokens: float) -> float:
        return 0.0 if self.prompt_tokens_per_second is None else tokens / self.prompt_tokens_per_second
