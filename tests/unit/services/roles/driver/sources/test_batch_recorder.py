"""Recorded batches: read back bit for bit, and never trained on if damaged."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from kubealign.replay.plan import ReplayPlan
from kubealign.replay.record import FOLDER, batch_path, list_recorded_steps, read_record, record_path
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.sources.batch_recorder import BatchRecorder, RecordingSource
from kubealign_services.roles.driver.sources.batch_replay import ReplaySource
from kubealign_services.roles.driver.state import JobState
from support.batches import random_batch

pytestmark = pytest.mark.timeout(60)


class FixedBatches:
    """Batch source of given batches."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        return self._batches[state.step] if state.step < len(self._batches) else None

    def state_after(self, state: JobState) -> JobState:
        return state.copy_for_next_step()


class Wants:
    def __init__(self, reference: bool) -> None:
        self.needs_reference = reference


def batch(seed: int) -> Batch:
    result = random_batch([3, 1, 2, 2], [0, 0, 1, 1], seed)
    result.sample_ids = ["0/7#0", "0/7#1", "0/2#0", "0/2#1"]
    result.token_columns["weight_version"] = torch.full((len(result.tokens),), seed, dtype=torch.int32)
    return result


def recorder(run: Path, fence: int = 1) -> BatchRecorder:
    result = BatchRecorder(run / FOLDER, Fence(run, fence), seed=5)
    result.resume_at(0)
    return result


def replay(run: Path, last: int, reference: bool = True, stop: asyncio.Event | None = None) -> ReplaySource:
    wants = cast(Algorithm, Wants(reference))
    return ReplaySource(ReplayPlan(run=run, first_step=1, last_step=last), wants, stop or asyncio.Event())


async def record(run: Path, batches: list[Batch], attempts: dict[str, int] | None = None) -> None:
    source = RecordingSource(FixedBatches(batches), recorder(run))
    for step in range(len(batches)):
        figures = StepRecord(step + 1)
        figures.attempts = attempts or {}
        state = JobState(step=step, algorithm={"coefficient": 0.5})
        assert await source.next_batch(state, figures) is batches[step]
        assert figures.metrics["seconds/record"] >= 0
    assert await source.next_batch(JobState(step=len(batches)), StepRecord(len(batches) + 1)) is None


async def test_a_recorded_batch_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    batches = [batch(0), batch(1)]
    await record(tmp_path, batches, {"0/7": 0, "0/2": 2})
    source, state = replay(tmp_path, 2), JobState()
    for recorded in batches:
        figures = StepRecord(state.step + 1)
        read_back = await source.next_batch(state, figures)
        assert (
            read_back is not None
            and read_back.sample_ids == recorded.sample_ids
            and read_back.scalars == recorded.scalars
        )
        for mine, theirs in (
            (read_back.token_columns, recorded.token_columns),
            (read_back.sequence_columns, recorded.sequence_columns),
            (
                {"t": read_back.tokens, "c": read_back.cu_seqlens},
                {"t": recorded.tokens, "c": recorded.cu_seqlens},
            ),
        ):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
            assert all(mine[name].dtype == theirs[name].dtype for name in theirs)
        assert figures.metrics == {"batch/tokens": len(recorded.tokens), "batch/sequences": 4}
        state = source.state_after(state)
        assert state.trained == ["0/7", "0/2"]
    assert await source.next_batch(state, StepRecord(3)) is None
    line = read_record(tmp_path / FOLDER, 2)
    assert (line.step, line.version, line.fence, line.seed) == (2, 1, 1, 5)
    assert (line.groups, line.attempts) == (["0/7", "0/2"], [0, 2])


async def test_given_rows_have_no_attempts(tmp_path: Path) -> None:
    await record(tmp_path, [batch(0)])
    assert read_record(tmp_path / FOLDER, 1).attempts == []


async def test_a_repeated_step_replaces_its_record(tmp_path: Path) -> None:
    await record(tmp_path, [batch(0), batch(1), batch(2)])
    later = BatchRecorder(tmp_path / FOLDER, Fence(tmp_path, 2), seed=5)
    later.resume_at(1)
    # A rollback to step 1 discards the later batches, regardless of whether they are recorded again.
    assert list_recorded_steps(tmp_path / FOLDER) == [1]
    assert [path.name for path in (tmp_path / FOLDER).glob("*.safetensors")] == ["step-00000001.safetensors"]
    again = batch(9)
    later.write(JobState(step=1), again, {})
    later.write(JobState(step=1), again, {})
    assert read_record(tmp_path / FOLDER, 2).fence == 2
    read_back = await replay(tmp_path, 2).next_batch(JobState(step=1), StepRecord(2))
    assert read_back is not None and torch.equal(read_back.token("values"), again.token("values"))


async def test_an_altered_bit_is_detected(tmp_path: Path) -> None:
    await record(tmp_path, [batch(0)])
    path = batch_path(tmp_path / FOLDER, 1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnrecoverableError, match=r"step 1: .*step-00000001.safetensors has been altered"):
        await replay(tmp_path, 1).next_batch(JobState(), StepRecord(1))
    path.unlink()
    with pytest.raises(UnrecoverableError, match=r"step-00000001.safetensors cannot be read \(No such file"):
        await replay(tmp_path, 1).next_batch(JobState(), StepRecord(1))


async def test_a_line_of_another_batch_is_detected(tmp_path: Path) -> None:
    await record(tmp_path, [batch(0)])
    where = record_path(tmp_path / FOLDER, 1)
    line: dict[str, Any] = json.loads(where.read_text())
    where.write_text(json.dumps(line | {"sample_ids": ["0/7#0"]}))
    with pytest.raises(UnrecoverableError, match="1 sample ids for 4 sequences"):
        await replay(tmp_path, 1).next_batch(JobState(), StepRecord(1))


async def test_a_missing_column_is_named(tmp_path: Path) -> None:
    alone = batch(0)
    del alone.token_columns["reference_logprobs"]
    await record(tmp_path, [alone])
    assert await replay(tmp_path, 1, reference=False).next_batch(JobState(), StepRecord(1)) is not None
    with pytest.raises(UnrecoverableError, match="recorded without a reference's log-probabilities"):
        await replay(tmp_path, 1, reference=True).next_batch(JobState(), StepRecord(1))


async def test_replay_stops_on_shutdown(tmp_path: Path) -> None:
    await record(tmp_path, [batch(0)])
    stop = asyncio.Event()
    stop.set()
    with pytest.raises(ShutdownRequested):
        await replay(tmp_path, 1, stop=stop).next_batch(JobState(), StepRecord(1))


async def test_a_disk_error_fails_the_job_with_a_remedy(tmp_path: Path) -> None:
    recorded = recorder(tmp_path)
    recorded.write(JobState(), batch(0), {})
    # A folder with the batch's name: no file can replace it.
    batch_path(tmp_path / FOLDER, 1).unlink()
    batch_path(tmp_path / FOLDER, 1).mkdir()
    with pytest.raises(UnrecoverableError, match=r"step 1 was not recorded: .*recordBatches: false"):
        recorded.write(JobState(), batch(1), {})
    # The previous batch's record is gone: its line must not describe remains of the new batch.
    assert list_recorded_steps(tmp_path / FOLDER) == []
