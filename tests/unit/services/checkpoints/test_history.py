"""Step history survives a crash at any byte; fences only grow."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.checkpoints.fence import acquire_fence
from kubealign_services.checkpoints.history import CorruptHistory, StepHistory, TrainedStep

pytestmark = pytest.mark.timeout(60)


def step(number: int, fence: int = 1) -> TrainedStep:
    return TrainedStep(
        fence=fence, step=number, version=number, prompts=[f"0:{2 * number}", f"0:{2 * number + 1}"]
    )


def test_steps_read_back_in_order(tmp_path: Path) -> None:
    history = StepHistory(tmp_path / "history.jsonl")
    assert history.read() == []
    history.truncate_after(0)
    for number in (1, 2, 3):
        history.append(step(number))
    assert history.read() == [step(1), step(2), step(3)]


def test_mean_rewards_read_back_and_are_left_out_where_there_are_none(tmp_path: Path) -> None:
    history = StepHistory(tmp_path / "history.jsonl")
    measured = step(2).model_copy(update={"dropped": ["0:9"], "mean_rewards": [0.1, 1 / 3, 1.0]})
    history.append(step(1))
    history.append(measured)
    history.truncate_after(2)
    assert history.read() == [step(1), measured]
    first, _ = (tmp_path / "history.jsonl").read_text().splitlines()
    assert first == '{"fence":1,"step":1,"version":1,"prompts":["0:2","0:3"]}'


def test_rollback_removes_later_steps(tmp_path: Path) -> None:
    history = StepHistory(tmp_path / "history.jsonl")
    for number in (1, 2, 3, 4):
        history.append(step(number))
    history.truncate_after(2)
    history.append(step(3, fence=2))
    assert history.read() == [step(1), step(2), step(3, fence=2)]


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
