"""Reference log-probabilities of given rows: from a worker on the bus or by a call, once per row."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache
from kubealign_services.roles.driver.frozen_models.reference import (
    FrozenReference,
    request_over_bus,
    score_hinted,
)
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.scoring.worker import ScoreWorker, empty_score


def rows(*sequences: list[int]) -> Batch:
    batch = pack(sequences, [f"0/{i}/chosen" for i in range(len(sequences))])
    batch.token_columns["loss_mask"] = (batch.positions > 0).to(torch.uint8)
    batch.sequence_columns["rating"] = torch.zeros(len(batch))
    return batch


def expected(batch: Batch) -> Tensor:
    """Return the stand-in reference's log-probabilities: minus the token, 0 outside the response."""
    return -batch.tokens.float() * batch.token("loss_mask")


class Called:
    """Reference that is called directly and records its requests."""

    def __init__(self, answer: Callable[[Batch], Tensor] = expected) -> None:
        self.asked: list[Batch] = []
        self._answer = answer

    async def __call__(self, batch: Batch) -> Tensor:
        self.asked.append(batch)
        return self._answer(batch)


async def read(reference: FrozenReference, batch: Batch) -> dict[str, float]:
    step = StepRecord(1)
    await reference.add_columns(batch, step)
    return step.metrics


def test_each_sequence_is_requested_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        asked = Called()
        reference = FrozenReference(asked, FrozenScoreCache(tmp_path, "reference", 1))
        first = rows([1, 2, 3], [1, 4], [1, 2, 3])
        figures = await read(reference, first)
        assert first.token("reference_logprobs").tolist() == expected(first).tolist()
        assert figures["reference/kept_share"] == 0 and figures["seconds/reference"] >= 0
        assert [part.sample_ids for part in asked.asked] == [["0/0/chosen", "0/1/chosen"]]
        assert set(asked.asked[0].token_columns) == {"loss_mask"} and not asked.asked[0].sequence_columns
        assert asked.asked[0].scalars == {"temperature": 1.0}

        later = FrozenReference(asked, FrozenScoreCache(tmp_path, "reference", 2))
        second = rows([1, 4], [7, 8], [1, 2, 3], [7, 9])
        assert (await read(later, second))["reference/kept_share"] == 0.5
        assert second.token("reference_logprobs").tolist() == expected(second).tolist()
        assert asked.asked[1].sample_ids == ["0/1/chosen", "0/3/chosen"]
        assert (await read(later, second))["reference/kept_share"] == 1
        assert len(asked.asked) == 2

    asyncio.run(scenario())


def test_invalid_logprobs_fail_the_job_and_are_not_cached(tmp_path: Path) -> None:
    async def scenario() -> None:
        cache = FrozenScoreCache(tmp_path, "reference", 1)

        def broken(batch: Batch) -> Tensor:
            return torch.where(batch.tokens == 4, torch.nan, expected(batch))

        with pytest.raises(UnrecoverableError, match="log-probabilities of 0/1/chosen are not finite"):
            await read(FrozenReference(Called(broken), cache), rows([1, 2, 3], [1, 4]))
        with pytest.raises(UnrecoverableError, match=r"of shape \(2,\) for 3 tokens"):
            await read(FrozenReference(Called(lambda batch: torch.zeros(2)), cache), rows([1, 2, 3]))
        assert len(cache) == 0

    asyncio.run(scenario())


Tamper = Callable[[scoring_pb2.Score], None]


@asynccontextmanager
async def on_bus(
    workers: int = 1, timeout: float = 20.0, tamper: Tamper = lambda score: None
) -> AsyncIterator[tuple[RowScorer, asyncio.Event, list[str], list[str]]]:
    """Yield the driver's client, with reference workers on the other end of the bus."""
    bus, stop, waits, scored = MemoryBus(), asyncio.Event(), list[str](), list[str]()

    async def score(rollouts: list[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        scores = []
        for rollout in rollouts:
            reply = empty_score(rollout, "reference", "reference-0")
            reply.logprobs = expected(decode(rollout.sequence)).numpy().astype("<f4").tobytes()
            tamper(reply)
            scored.append(rollout.group_id)
            scores.append(reply)
        return scores

    running = [
        asyncio.create_task(ScoreWorker(bus.new_connection(), "reference", frozenset({"train"}), score).run())  # type: ignore[arg-type]
        for _ in range(workers)
    ]
    try:
        async with RolloutCollector(bus, 1, stop, lambda text: waits.append(text())) as exchange:
            yield RowScorer(exchange, ["reference"], timeout, 1), stop, waits, scored
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def test_a_worker_on_the_bus_returns_the_same_logprobs(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_bus(workers=2) as (scores, _, _, scored):
            reference = FrozenReference(request_over_bus(scores), FrozenScoreCache(tmp_path, "reference", 1))
            batch = rows(*([1, i, i + 1] for i in range(2, 40)), [5])
            await read(reference, batch)
            assert batch.token("reference_logprobs").tolist() == expected(batch).tolist()
            assert len(scored) == 39
            again = rows([1, 2, 3], [5])
            await read(reference, again)
            assert len(scored) == 39

    asyncio.run(scenario())


def test_a_missing_reference_fails_the_job_with_its_cause(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_bus(workers=0, timeout=0.2) as (scores, _, waits, _):
            reference = FrozenReference(request_over_bus(scores), FrozenScoreCache(tmp_path, "reference", 1))
            with pytest.raises(
                UnrecoverableError, match=r"reference did not score .* 2 tries.*no score had come"
            ):
                await read(reference, rows([1, 2]))
            assert waits[0] == "scores of reference for 1 groups"

    asyncio.run(scenario())


def test_a_job_that_is_stopped_does_not_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with on_bus(workers=0) as (scores, stop, _, _):
            reference = FrozenReference(request_over_bus(scores), FrozenScoreCache(tmp_path, "reference", 1))
            asyncio.get_running_loop().call_later(0.05, stop.set)
            with pytest.raises(ShutdownRequested):
                await read(reference, rows([1, 2]))

    asyncio.run(scenario())


def test_too_few_logprobs_are_rejected(tmp_path: Path) -> None:
    def shorten(score: scoring_pb2.Score) -> None:
        score.logprobs = score.logprobs[:-4]

    async def scenario() -> None:
        async with on_bus(tamper=shorten) as (scores, _, _, _):
            reference = FrozenReference(request_over_bus(scores), FrozenScoreCache(tmp_path, "reference", 1))
            with pytest.raises(
                UnrecoverableError, match="2 log-probabilities for the 3 tokens of 0/0/chosen"
            ):
                await read(reference, rows([1, 2, 3]))

    asyncio.run(scenario())


async def test_a_reference_of_the_trainer_scores_responses_after_hinted_prompts() -> None:
    batch = rows([3, 5, 6], [4, 7])
    batch.sample_ids = ["2/0#0", "2/1#3"]
    prompts = [
        PreparedRow(index, [prompt], "", teacher_prompt_tokens=[9, 9, prompt][index:])
        for index, prompt in enumerate((3, 4))
    ]
    reference = Called()
    logprobs = await score_hinted(reference, TeacherPrompts(prompts), batch)
    (request,) = reference.asked
    assert request.tokens.tolist() == [9, 9, 3, 5, 6, 9, 4, 7]
    assert request.sequence("rating").tolist() == [0, 0]
    assert logprobs.tolist() == [0, -5, -6, 0, -7]
    batch.sample_ids = ["2/1#0", "2/0#0"]
    with pytest.raises(UnrecoverableError, match="2/1#0 does not begin with the 1 tokens"):
        await score_hinted(reference, TeacherPrompts(prompts), batch)
