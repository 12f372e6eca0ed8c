"""The loop of a job that makes data: rows in, rows out, each step written before the next begins."""

from dataclasses import dataclass

from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.making.maker import RowMaker
from kubealign_services.driver.making.row_file import RowFile
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import Report


@dataclass
class Making:
    """One attempt at such a job. rows: of its data; rows_per_step: of them, those that a step takes."""

    maker: RowMaker
    file: RowFile
    report: Report
    rows: int
    rows_per_step: int
    max_steps: int

    @property
    def steps(self) -> int:
        """All of them."""
        return min(self.max_steps, -(-self.rows // self.rows_per_step))


async def make_rows(making: Making) -> MakingState:
    """Take the job to its end. Raises JobFailed, Stopping, and what a lost role raises; what was written by
    then is not made again."""
    while making.file.state.step < making.steps:
        await _step(making)
    state = making.file.state
    if not making.file.finished:
        if not state.rows:
            raise JobFailed(f"no row was made of {state.position} rows: {_why(state)}")
        making.file.finish()
    return state


async def _step(making: Making) -> None:
    before = making.file.state
    places = range(before.position, min(before.position + making.rows_per_step, making.rows))
    following = before.next(len(places))
    with making.report.step(following.step) as step:
        rows = await making.maker.make(places, following, step)
        step.add({"data/rows": before.rows + len(rows), "data/position": following.position})
        step.add({f"data/left_out/{why}": count for why, count in following.left_out.items()})
    # After the figures: these may be told twice, under another fence, and rows are written once.
    making.file.append(rows, following)


def _why(state: MakingState) -> str:
    reasons = [f"{count} {why.replace('_', ' ')}" for why, count in state.left_out.items()]
    if state.given_up:
        reasons.append(f"{len(state.given_up)} given up")
    return ", ".join(reasons) or "there was none to be made"
