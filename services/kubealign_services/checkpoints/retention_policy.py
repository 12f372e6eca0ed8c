"""Rule by which checkpoints stay: the newest, the best by a validation metric, and one every so many steps.
Pure.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from kubealign.spec.sections.lifecycle import Checkpoint, KeepBest, MetricOrder

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class RetentionPolicy:
    """Numbers of checkpoints that stay.

    Args:
        keep: Number of newest checkpoints, at least 1.
        best: Further ones that stay because of their validation metric; None: none.
        every_steps: The newest of each step that is a multiple of this number stays; None: none of them.
    """

    keep: int
    best: KeepBest | None = None
    every_steps: int | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep is {self.keep}; at least 1 checkpoint must stay")

    @classmethod
    def of(cls, spec: Checkpoint) -> Self:
        """Return the policy of a job."""
        return cls(spec.keep, spec.keep_best, spec.keep_every_steps)

    def score(self, driver_state: Mapping[str, object]) -> float | None:
        """Return the value by which a checkpoint with this driver state is compared; higher is better.

        None: its step was not validated, or the metric was not measured or is not finite.
        """
        if self.best is None or driver_state.get("validated_step") != driver_state.get("step"):
            return None
        metrics = driver_state.get("validation")
        value = metrics.get(self.best.metric) if isinstance(metrics, Mapping) else None
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value) if self.best.order is MetricOrder.HIGHEST else -float(value)

    def retained(self, scores: Mapping[T, float | None], step_of: Callable[[T], int]) -> set[T]:
        """Return the checkpoints that stay.

        Args:
            scores: Checkpoint -> value of `score`, oldest first.
            step_of: Returns the step of a checkpoint.
        """
        return set([*scores][-self.keep :]) | set(self._best(scores)) | set(self._spaced(scores, step_of))

    def is_among_best(self, score: float, others: Sequence[float | None]) -> bool:
        """Return True if a new checkpoint with this score would be one of the best beside the others.

        Of two equal ones the older is the better.
        """
        if self.best is None:
            return False
        better = [other for other in others if other is not None and other >= score]
        return len(better) < self.best.count

    def _spaced(self, checkpoints: Iterable[T], step_of: Callable[[T], int]) -> Iterable[T]:
        if self.every_steps is None:
            return ()
        newest_of_step = {step_of(checkpoint): checkpoint for checkpoint in checkpoints}
        return [newest_of_step[step] for step in newest_of_step if step % self.every_steps == 0]

    def _best(self, scores: Mapping[T, float | None]) -> list[T]:
        if self.best is None:
            return []
        scored = [(score, checkpoint) for checkpoint, score in scores.items() if score is not None]
        # Stable: of equal scores the older checkpoint comes first.
        ranked = sorted(scored, key=lambda entry: -entry[0])
        return [checkpoint for _, checkpoint in ranked[: self.best.count]]
