"""Streamed prompts: the same names after a stop at any step, few rows held, and reads off the event loop."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kubealign.spec.sections.data import Data
from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.prepared import DatasetReport
from kubealign_services.data.sources.file_rows import RowPosition
from kubealign_services.data.sources.row_dataset import RowDataset
from kubealign_services.data.streaming.row_stream import RowStream, StreamState
from kubealign_services.data.streaming.stream_order import StreamOrder
from kubealign_services.data.streaming.tokenized_stream import TokenizedStream
from kubealign_services.data.tokenization.length_filter import TokenBudget
from kubealign_services.data.tokenization.row_writer import RowEncoder
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.streamed_prompts import StreamedPrompts
from kubealign_services.roles.driver.sources.batch_sources import NoFrozenModels, RowSource
from kubealign_services.roles.driver.sources.row_batches import RowBatches
from kubealign_services.roles.driver.state import JobState

ROWS, BUFFER = 70, 8
DATA = Data.model_validate({"demonstrations": {"source": {"path": "rows.jsonl"}, "streaming": {}}})
TOKENIZER = train_character_tokenizer(["ab"])


class Source:
    """Rows, every fifth of which is too long. `gate` stops the reading, `bad`: a row without text."""

    def __init__(self, bad: int | None = None) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.bad = bad
        self.started_at: list[int] = []

    def read(self, start: RowPosition) -> Iterator[tuple[RowPosition, dict[str, Any]]]:
        self.started_at.append(start.row)
        for number in range(start.row, ROWS):
            assert self.gate.wait(30)
            prompt = "b" * (9 if number % 5 == 0 else 1 + number % 3)
            yield (
                RowPosition(number, 0, number),
                {"prompt": 1 if number == self.bad else prompt, "response": "a"},
            )

    def prompts(self, state: JobState, **options: Any) -> StreamedPrompts:
        stream_state = state.stream or StreamState()
        dataset = RowDataset("rows", ("prompt", "response"), self.read, None)
        rows = RowStream(dataset, StreamOrder(3, BUFFER), state.cursor, stream_state)
        encoder = RowEncoder(DATA, TOKENIZER, TokenBudget(prompt=8), None, (), None)
        stream = TokenizedStream(rows, encoder, stream_state.dropped)
        options = {"check": lambda report: None} | options
        return StreamedPrompts(stream, state.cursor, stream_state, state.unfinished, **options)


class Job:
    """A job whose steps train `size` prompts while `ahead` others are requested."""

    def __init__(self, source: Source, size: int, ahead: int) -> None:
        self.source, self.size, self.ahead = source, size, ahead
        self.state = JobState()
        self.trained: list[str] = []
        self.dropped: list[float] = []
        self.held = 0
        self.restart()

    def restart(self) -> None:
        """Continue from the state as a checkpoint stores it."""
        self.state = JobState.model_validate_json(self.state.model_dump_json())
        self.prompts = self.source.prompts(self.state)
        self.requested: list[str] = []

    async def step(self) -> None:
        while len(self.requested) < self.size + self.ahead:
            self.requested.append(await self.prompts.next_prompt())
        for name in self.requested:
            assert self.prompts.row(name).row == int(name.partition("/")[2])
        trained, self.requested = self.requested[: self.size], self.requested[self.size :]
        after = self.state.copy_for_next_step()
        after.cursor, after.unfinished = self.prompts.cursor, [*self.requested, *self.prompts.unfinished]
        after.stream = self.prompts.commit(after.unfinished)
        self.held = max(self.held, len(self.prompts.rows))
        self.dropped.append(self.prompts.metrics()["data/dropped_prompts"])
        self.trained += trained
        self.state = after


@pytest.mark.parametrize("ahead", [0, 3, 40])
async def test_the_same_prompts_after_a_stop_at_every_step(ahead: int) -> None:
    undisturbed, stopped = Job(Source(), 5, ahead), Job(Source(), 5, ahead)
    for _ in range(40):
        await undisturbed.step()
        await stopped.step()
        await stopped.prompts.close()
        stopped.restart()
    await undisturbed.prompts.close()
    assert stopped.trained == undisturbed.trained
    assert stopped.dropped == undisturbed.dropped
    rows_per_pass = sum(number % 5 != 0 for number in range(ROWS))
    for source_pass in range(200 // rows_per_pass):
        part = undisturbed.trained[source_pass * rows_per_pass : (source_pass + 1) * rows_per_pass]
        assert sorted(part) == sorted(f"{source_pass}/{number}" for number in range(ROWS) if number % 5)
    # Only prompts that are not trained on yet are held.
    assert undisturbed.held <= ahead
    # A driver that continues does not always begin at the first row.
    assert max(stopped.source.started_at) > ROWS // 2


async def test_rows_become_batches() -> None:
    source = Source()
    prompts = source.prompts(JobState())
    batches = RowBatches(prompts.rows, "demonstrations", False)
    rows = RowSource(prompts, 7, 4, batches, asyncio.Event(), NoFrozenModels())
    step, state = StepRecord(1), JobState()
    batch = await rows.next_batch(state, step)
    assert batch is not None and len(batch) == 4
    names = batch.sample_ids
    # <pad>, <eos>, <unk>, a, b: the prompt, then the response and its end.
    expected = [token for name in names for token in [4] * (1 + int(name[2:]) % 3) + [3, 1]]
    assert batch.tokens.tolist() == expected
    after = rows.state_after(state)
    assert after.trained == names and after.cursor.position >= 4 and after.unfinished == []
    assert prompts.rows == {}
    assert step.metrics["data/rows_read"] == after.cursor.position + BUFFER
    assert step.metrics["data/dropped_prompts"] == after.cursor.position - 4
    assert json.loads(after.model_dump_json())["stream"]["unfinished"] == {}
    await prompts.close()


async def test_the_event_loop_runs_while_rows_are_read_and_a_read_has_a_deadline() -> None:
    source = Source()
    source.gate.clear()
    prompts = source.prompts(JobState())
    reading = asyncio.create_task(prompts.next_prompt())
    await asyncio.sleep(0)
    assert not reading.done()
    source.gate.set()
    assert await asyncio.wait_for(reading, 30)
    await prompts.close()
    source.gate.clear()
    late = source.prompts(JobState(), timeout=0.05)
    with pytest.raises(UnrecoverableError, match=r"rows: the next rows could not be read in 0.05 s"):
        await late.next_prompt()
    source.gate.set()
    await late.close()


async def test_a_bad_row_and_a_row_for_which_the_bus_is_too_small_fail_the_job() -> None:
    prompts = Source(bad=1).prompts(JobState())
    with pytest.raises(UnrecoverableError, match=r"rows: row 2: column 'prompt' holds 1 \(int\), not text"):
        for _ in range(ROWS):
            await prompts.next_prompt()
    await prompts.close()

    def check(report: DatasetReport) -> None:
        assert report.longest_prompt == 3
        raise UnrecoverableError("the longest rollout")

    prompts = Source().prompts(JobState(), check=check)
    with pytest.raises(UnrecoverableError, match="the longest rollout"):
        await prompts.next_prompt()
    await prompts.close()


async def test_the_cursor_is_that_of_the_prompts_taken_not_of_the_rows_read_ahead() -> None:
    prompts = Source().prompts(JobState())
    await prompts.next_prompt()
    assert 1 <= prompts.cursor.position <= 6
    assert prompts.cursor == EpochCursor(0, prompts.cursor.position)
    await prompts.close()
