"""Loop of a job that generates data: each step's rows are written before the next step begins."""

from dataclasses import dataclass

from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.making.maker import RowMaker
from kubealign_services.driver.making.row_file import RowFile
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import Report


@dataclass
class Making:
    """One attempt at a job that generates data. rows: rows of its data; rows_per_step: rows that one step
    takes.
    """

    maker: RowMaker
    file: RowFile
    report: Report
    rows: int
    rows_per_step: int
    max_steps: int

    @property
    def steps(self) -> int:
        """Total number of steps."""
        return min(self.max_steps, -(-self.rows // self.rows_per_step))


async def make_rows(making: Making) -> MakingState:
    """Run the job to its end. Rows that were written are not generated again.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop.
    """
    while making.file.state.step < making.steps:
        await _step(making)
    state = making.file.state
    if not making.file.finished:
        if not state.rows:
            raise JobFailed(f"no row was generated from {state.position} rows: {_why(state)}")
        making.file.finish()
    return state


async def _step(making: Making) -> None:
    """Generate and write the rows of one step."""
    before = making.file.state
    indices = range(before.position, min(before.position + making.rows_per_step, making.rows))
    next_state = before.next(len(indices))
    with making.report.step(next_state.step) as step:
        rows = await making.maker.make(indices, next_state, step)
        step.add({"data/rows": before.rows + len(rows), "data/position": next_state.position})
        step.add({f"data/left_out/{why}": count for why, count in next_state.left_out.items()})
    # Written after the metrics: a metric may be reported twice, under another fence, a row is written once.
    making.file.append(rows, next_state)


def _why(state: MakingState) -> str:
    reasons = [f"{count} {why.replace('_', ' ')}" for why, count in state.left_out.items()]
    if state.given_up:
        reasons.append(f"{len(state.given_up)} given up")
    return ", ".join(reasons) or "the job's data gave none"
