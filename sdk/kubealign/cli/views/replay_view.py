"""Displays the outcome of a replay as lines and a table. Pure."""

from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kubealign.cli.views.job_table import new_table
from kubealign.replay.comparison import MetricDifference, ReplayComparison

_MAX_ROWS_PER_STEP = 12


@dataclass(frozen=True)
class ReplayOutcome:
    """Outcome of a replay.

    Attributes:
        requested_steps: Number of steps to be replayed.
        spec_was_modified: The job was modified, so differences are expected.
        weights_equal: Both results are equal byte by byte; None if they are not of the same step.
        threads: Number of trainer threads of the recorded run and of the replay; None if unknown.
    """

    comparison: ReplayComparison
    requested_steps: int
    tolerance: float
    spec_was_modified: bool
    weights_equal: bool | None
    threads: tuple[int | None, int | None]

    @property
    def has_passed(self) -> bool:
        """True if all steps were replayed and, for an unmodified job, no difference exceeds the tolerance."""
        if self.comparison.steps < self.requested_steps:
            return False
        if self.spec_was_modified:
            return True
        # Equal metrics with different weights are an unexplained difference.
        has_unexplained_difference = not self.comparison.differences and self.weights_equal is False
        return (
            self.comparison.first_difference_beyond(self.tolerance) is None and not has_unexplained_difference
        )


def replay_view(outcome: ReplayOutcome) -> list[RenderableType]:
    """Return the outcome first, then the differences of a modified or failed replay."""
    comparison = outcome.comparison
    lines: list[RenderableType] = [
        Text(_headline(outcome), style="bold" if outcome.has_passed else "bold red")
    ]
    if comparison.steps < outcome.requested_steps:
        lines.append(
            Text(f"only {comparison.steps} of {outcome.requested_steps} steps were replayed", style="red")
        )
    if outcome.weights_equal is not None:
        lines.append(
            Text(
                "final weights: "
                + ("equal bit for bit" if outcome.weights_equal else "not equal bit for bit")
            )
        )
    before, now = outcome.threads
    if comparison.differences and None not in (before, now) and before != now:
        lines.append(
            Text(f"the trainer used {before} threads in the recorded run, and {now} now", style="yellow")
        )
    if comparison.differences and (outcome.spec_was_modified or not outcome.has_passed):
        lines.append(_difference_table(comparison, outcome.tolerance))
    return lines


def _headline(outcome: ReplayOutcome) -> str:
    comparison = outcome.comparison
    compared = f"{comparison.metrics} metrics of {comparison.steps} steps"
    if not comparison.differences:
        return f"{compared}: equal bit for bit"
    beyond, largest = comparison.first_difference_beyond(outcome.tolerance), comparison.largest
    if beyond is None and largest is not None:
        return (
            f"{compared}: equal up to rounding; the largest relative difference is {largest.relative:.1g}, "
            f"in {largest.metric} of step {largest.step}"
        )
    assert beyond is not None
    return (
        f"{compared}: step {beyond.step} is the first that differs, in {beyond.metric}: "
        f"{beyond.recorded:.9g} recorded, {beyond.replayed:.9g} now"
    )


def _difference_table(comparison: ReplayComparison, tolerance: float) -> Table:
    """Return the differences of the first and of the last differing step."""
    beyond = [each for each in comparison.differences if each.relative > tolerance]
    chosen: list[MetricDifference] = []
    for step in dict.fromkeys((beyond[0].step, beyond[-1].step)) if beyond else ():
        step_differences = [each for each in beyond if each.step == step]
        chosen += sorted(step_differences, key=lambda each: -each.relative)[:_MAX_ROWS_PER_STEP]
    result = new_table(["STEP", "METRIC", "RECORDED", "REPLAYED", "RELATIVE"], last_folds=False)
    for each in chosen:
        result.add_row(
            str(each.step),
            each.metric,
            f"{each.recorded:.6g}",
            f"{each.replayed:.6g}",
            f"{each.relative:.2g}",
        )
    return result
