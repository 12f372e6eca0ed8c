"""Loop of a job that generates data: each step's rows are written before the next step begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubealign_services.roles.driver.data_generation.row_file import RowFile
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import MetricsReport, StepRecord


class RowMaker(Protocol):
    """Generates the rows of one step after another. The same indices always give the same rows."""

    async def make(
        self, indices: Sequence[int], state: DataGenerationState, step: StepRecord
    ) -> list[dict[str, Any]]:
        """Return the rows generated from the job's rows at these indices (from 0), as JSON objects, in order.

        Args:
            state: State after the step. The maker stores in it what later steps need: moments of the
                rewards, failed prompts.

        Raises:
            UnrecoverableError: The job cannot succeed.
            ShutdownRequested: The driver was asked to stop.
        """


@dataclass
class DataGenerationRun:
    """One attempt at a job that generates data. rows: rows of its data; rows_per_step: rows that one step
    takes.
    """

    maker: RowMaker
    file: RowFile
    report: MetricsReport
    rows: int
    rows_per_step: int
    total_steps: int


async def make_rows(run: DataGenerationRun) -> DataGenerationState:
    """Run the job to its end. Rows that were written are not generated again.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop.
    """
    while run.file.state.step < run.total_steps:
        await _step(run)
    state = run.file.state
    if not run.file.is_finished:
        if not state.rows:
            raise UnrecoverableError(
                f"no row was generated from {state.position} rows: {_describe_skipped(state)}"
            )
        run.file.finish()
    return state


async def _step(run: DataGenerationRun) -> None:
    """Generate and write the rows of one step."""
    before = run.file.state
    indices = range(before.position, min(before.position + run.rows_per_step, run.rows))
    next_state = before.copy_for_next_step(len(indices))
    with run.report.measure_step(next_state.step) as step:
        rows = await run.maker.make(indices, next_state, step)
        step.add({"data/rows": before.rows + len(rows), "data/position": next_state.position})
        step.add({f"data/left_out/{why}": count for why, count in next_state.left_out.items()})
    # Written after the metrics: a metric may be reported twice, under another fence, a row is written once.
    run.file.append(rows, next_state)


def _describe_skipped(state: DataGenerationState) -> str:
    reasons = [f"{count} {why.replace('_', ' ')}" for why, count in state.left_out.items()]
    if state.given_up:
        reasons.append(f"{len(state.given_up)} given up")
    return ", ".join(reasons) or "the job's data gave none"
