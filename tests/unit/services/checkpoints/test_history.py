"""Step history survives a crash at any byte; fences only grow."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.checkpoints.history import (
    CorruptHistory,
    StepHistory,
    TrainedStep,
    history_path,
    read_history,
)
from kubealign_services.checkpoints.lineage import record_start

pytestmark = pytest.mark.timeout(60)


def step(number: int, fence: int = 1) -> TrainedStep:
    return TrainedStep(
        fence=fence, step=number, version=number, prompts=[f"0:{2 * number}", f"0:{2 * number + 1}"]
    )


def test_steps_read_back_in_order(tmp_path: Path) -> None:
    history = StepHistory(tmp_path / "history.jsonl")
    assert history.read() == []
    for number in (1, 2, 3):
        history.append(step(number))
    assert history.read() == [step(1), step(2), step(3)]


def test_mean_rewards_read_back_and_are_left_out_where_there_are_none(tmp_path: Path) -> None:
    history = StepHistory(tmp_path / "history.jsonl")
    measured = step(2).model_copy(update={"dropped": ["0:9"], "mean_rewards": [0.1, 1 / 3, 1.0]})
    history.append(step(1))
    history.append(measured)
    assert history.read() == [step(1), measured]
    first, _ = (tmp_path / "history.jsonl").read_text().splitlines()
    assert first == '{"fence":1,"step":1,"version":1,"prompts":["0:2","0:3"]}'


def write(run_dir: Path, fence: int, *numbers: int) -> None:
    for number in numbers:
        StepHistory(history_path(run_dir, fence)).append(step(number, fence))


def test_rollback_leaves_out_later_steps_of_the_fence_before(tmp_path: Path) -> None:
    record_start(Fence(tmp_path, 1), 0)
    write(tmp_path, 1, 1, 2, 3, 4)
    lineage = record_start(Fence(tmp_path, 2), 2)
    write(tmp_path, 2, 3)
    record_start(Fence(tmp_path, 3), 1)
    write(tmp_path, 3, 2)
    # Fence 2 has been rolled back to step 1, before the step that it began with itself.
    assert read_history(tmp_path) == [step(1), step(2, fence=3)]
    assert read_history(tmp_path, lineage) == [step(1), step(2), step(3, fence=2)]


def test_line_that_a_replaced_driver_writes_late_is_ignored(tmp_path: Path) -> None:
    record_start(Fence(tmp_path, 1), 0)
    write(tmp_path, 1, 1)
    record_start(Fence(tmp_path, 2), 1)
    write(tmp_path, 2, 2)
    write(tmp_path, 1, 2, 3)
    assert read_history(tmp_path) == [step(1), step(2, fence=2)]


def test_history_of_an_older_release_is_continued(tmp_path: Path) -> None:
    """Check that a run whose one file has lines of several fences goes on, rolled back to step 2."""
    old = StepHistory(tmp_path / "history.jsonl")
    for line in (step(1), step(2, fence=2), step(3, fence=2)):
        old.append(line)
    assert read_history(tmp_path) == [step(1), step(2, fence=2), step(3, fence=2)]
    record_start(Fence(tmp_path, 3), 2)
    write(tmp_path, 3, 3)
    assert read_history(tmp_path) == [step(1), step(2, fence=2), step(3, fence=3)]


@settings(deadline=None, max_examples=50)
@given(lost=st.integers(1, 400))
def test_torn_last_line_is_ignored_and_overwritten(lost: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.jsonl"
        history = StepHistory(path)
        for number in (1, 2, 3):
            history.append(step(number))
        data = path.read_bytes()
        path.write_bytes(data[: max(0, len(data) - lost)])
        steps = history.read()
        # A line is complete exactly when its newline is present.
        assert steps == [step(1), step(2), step(3)][: path.read_bytes().count(b"\n")]
        history.append(step(9))
        assert history.read() == [*steps, step(9)]


def test_last_line_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = StepHistory(path)
    history.append(step(1))
    long = TrainedStep(fence=1, step=2, version=2, prompts=[f"0:{index}" for index in range(40_000)])
    history.append(long)
    assert len(path.read_bytes()) > 4 * 65536
    path.write_bytes(path.read_bytes()[:-1])
    history.append(step(3))
    assert history.read() == [step(1), step(3)]


def test_corrupt_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = StepHistory(path)
    history.append(step(1))
    path.write_bytes(path.read_bytes() + b"{nonsense}\n")
    history.append(step(3))
    with pytest.raises(CorruptHistory, match=r"history\.jsonl, line 2"):
        history.read()


def test_fences_grow_and_are_unique(tmp_path: Path) -> None:
    assert [acquire_fence(tmp_path / "run") for _ in range(11)] == list(range(1, 12))
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: acquire_fence(tmp_path / "run"), range(40)))
    assert sorted(taken) == list(range(12, 52))


def test_fence_is_stale_once_a_higher_one_exists(tmp_path: Path) -> None:
    Fence(tmp_path, 1).check()
    fence = Fence(tmp_path, acquire_fence(tmp_path))
    fence.check()
    assert acquire_fence(tmp_path, after=1) == 2
    with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
        fence.check()
    with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
        acquire_fence(tmp_path, after=1)
    assert acquire_fence(tmp_path) == 3
    with pytest.raises(StaleFence):
        record_start(fence, 0)
