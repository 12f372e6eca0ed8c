"""Displays the outcome of a replay as lines and a table. Pure."""

from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kubealign.cli.job_table import table
from kubealign.replay.comparison import Comparison, Difference

_SHOWN = 12


@dataclass(frozen=True)
class Verdict:
    """Outcome of a replay.

    requested_steps: number of steps to be replayed. is_modified: the job was modified, so differences are
    expected.
    weights_equal: both results are equal byte by byte; None if they are not of the same step. threads:
    number of trainer
    threads of the recorded run and of the replay; None if unknown.
    """

    comparison: Comparison
    asked: int
    tolerance: float
    changed: bool
    weights: bool | None
    threads: tuple[int | None, int | None]

    @property
    def passed(self) -> bool:
        if self.comparison.steps < self.asked:
            return False
        if self.changed:
            return True
        # Equal metrics with different weights are an unexplained difference.
        unexplained = not self.comparison.differences and self.weights is False
        return self.comparison.beyond(self.tolerance) is None and not unexplained


def replay_view(verdict: Verdict) -> list[RenderableType]:
    """Return the outcome first, then the differences of a modified or failed replay."""
    comparison = verdict.comparison
    lines: list[RenderableType] = [Text(_headline(verdict), style="bold" if verdict.passed else "bold red")]
    if comparison.steps < verdict.asked:
        lines.append(Text(f"only {comparison.steps} of {verdict.asked} steps were replayed", style="red"))
    if verdict.weights is not None:
        lines.append(
            Text("final weights: " + ("equal bit for bit" if verdict.weights else "not equal bit for bit"))
        )
    before, now = verdict.threads
    if comparison.differences and None not in (before, now) and before != now:
        lines.append(Text(f"the trainer used {before} threads in the recorded run, and {now} now", style="yellow"))
    if comparison.differences and (verdict.changed or not verdict.passed):
        lines.append(_table(comparison, verdict.tolerance))
    return lines


def _headline(verdict: Verdict) -> str:
    comparison = verdict.comparison
    compared = f"{comparison.figures} metrics of {comparison.steps} steps"
    if not comparison.differences:
        return f"{compared}: equal bit for bit"
    beyond, largest = comparison.beyond(verdict.tolerance), comparison.largest
    if beyond is None and largest is not None:
        return (
            f"{compared}: equal up to rounding; the largest relative difference is {largest.relative:.1g}, "
            f"in {largest.figure} of step {largest.step}"
        )
    assert beyond is not None
    return (
        f"{compared}: step {beyond.step} is the first that differs, in {beyond.figure}: "
        f"{beyond.recorded:.9g} recorded, {beyond.replayed:.9g} now"
    )


def _table(comparison: Comparison, tolerance: float) -> Table:
    """Return the differences of the first and of the last differing step."""
    beyond = [each for each in comparison.differences if each.relative > tolerance]
    chosen: list[Difference] = []
    for step in dict.fromkeys((beyond[0].step, beyond[-1].step)) if beyond else ():
        step_differences = [each for each in beyond if each.step == step]
        chosen += sorted(step_differences, key=lambda each: -each.relative)[:_SHOWN]
    result = table(["STEP", "METRIC", "RECORDED", "REPLAYED", "RELATIVE"], last_folds=False)
    for each in chosen:
        result.add_row(
            str(each.step),
            each.figure,
            f"{each.recorded:.6g}",
            f"{each.replayed:.6g}",
            f"{each.relative:.2g}",
        )
    return result
