"""Responses of the initial policy: sampled once with the first weights, stored, and added to the rows."""

from pathlib import Path
from typing import Any

import pytest

from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.initial_policy import (
    FILE,
    InitialPolicyResponses,
    RowsWithInitialPolicy,
)

RESPONSES = {0: "é\n", 2: "two"}


class Sampler:
    """Returns the responses and records the steps of the states with which it is called."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    async def __call__(self, state: JobState) -> dict[int, str]:
        self.steps.append(state.step)
        return RESPONSES


def open_responses(
    run_dir: Path, sample: Any, first_step: int | None = 0, fence: Fence | None = None
) -> InitialPolicyResponses:
    fence = fence or Fence(run_dir, acquire_fence(run_dir))
    return InitialPolicyResponses(sample, run_dir / "validation" / "math", fence, first_step)


async def test_responses_are_sampled_once_in_the_life_of_a_run(tmp_path: Path) -> None:
    first, second = Sampler(), Sampler()
    responses = open_responses(tmp_path, first)
    await responses.load(JobState(step=0))
    await responses.load(JobState(step=4))
    resumed = open_responses(tmp_path, second)
    await resumed.load(JobState(step=4))
    assert (first.steps, second.steps) == ([0], [])
    assert [resumed[row] for row in range(3)] == ["é\n", None, "two"]


async def test_a_job_begins_with_the_step_of_its_parent(tmp_path: Path) -> None:
    sample = Sampler()
    await open_responses(tmp_path, sample, first_step=20).load(JobState(step=20))
    assert sample.steps == [20]


async def test_responses_of_later_weights_are_not_sampled(tmp_path: Path) -> None:
    sample = Sampler()
    with pytest.raises(UnrecoverableError, match=rf"{FILE} is missing, and the job has trained 3 steps"):
        await open_responses(tmp_path, sample, first_step=20).load(JobState(step=23))
    assert sample.steps == []
    await open_responses(tmp_path, sample, first_step=None).load(JobState(step=23))
    assert sample.steps == [23]


async def test_an_interrupted_sampling_leaves_no_file(tmp_path: Path) -> None:
    async def stopped(state: JobState) -> dict[int, str]:
        raise ShutdownRequested

    with pytest.raises(ShutdownRequested):
        await open_responses(tmp_path, stopped).load(JobState(step=0))
    assert not (tmp_path / "validation").exists()


async def test_a_replaced_driver_stores_nothing(tmp_path: Path) -> None:
    replaced = Fence(tmp_path, acquire_fence(tmp_path))
    acquire_fence(tmp_path)
    with pytest.raises(StaleFence):
        await open_responses(tmp_path, Sampler(), fence=replaced).load(JobState(step=0))
    assert not (tmp_path / "validation").exists()


async def test_an_altered_file_is_refused(tmp_path: Path) -> None:
    await open_responses(tmp_path, Sampler()).load(JobState(step=0))
    path = tmp_path / "validation" / "math" / FILE
    path.write_text(path.read_text().replace('"row"', '"now"'))
    with pytest.raises(UnrecoverableError, match=f"{FILE} was altered"):
        await open_responses(tmp_path, Sampler()).load(JobState(step=0))


async def test_rows_have_the_responses_in_a_column(tmp_path: Path) -> None:
    rows = [PreparedRow(number, [number], f"p{number}", {"answer": number}) for number in range(3)]
    responses = open_responses(tmp_path, Sampler())
    await responses.load(JobState(step=0))
    compared = RowsWithInitialPolicy(rows, "initial", responses)
    assert [row.columns for row in compared] == [
        {"answer": 0, "initial": "é\n"},
        {"answer": 1, "initial": None},
        {"answer": 2, "initial": "two"},
    ]
    assert [row.prompt_tokens for row in compared[1:]] == [[1], [2]]
    assert rows[0].columns == {"answer": 0}
