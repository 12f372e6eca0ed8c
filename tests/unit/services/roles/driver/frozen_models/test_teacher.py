"""Teacher candidates of given rows: requested over the bus, checked and cached."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.frozen_models.teacher import FrozenTeacher
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.scoring.worker import ScoreWorker, empty_score

Tamper = Callable[[scoring_pb2.Score], None]


def rows(*sequences: list[int]) -> Batch:
    """Return sequences whose first token is the prompt."""
    batch = pack(sequences, [f"0/{i}" for i in range(len(sequences))])
    batch.token_columns["loss_mask"] = (batch.positions > 0).to(torch.uint8)
    return batch


def candidates_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the stand-in's candidates: the token and the next one, with log-probabilities derived from their
    ids.
    """
    tokens = torch.stack([batch.tokens, batch.tokens + 1], 1).long() * batch.token("loss_mask")[:, None]
    return tokens, -tokens.float() / 7


@asynccontextmanager
async def teaching(
    folder: Path, tamper: Tamper = lambda score: None, most_kept: int = 1 << 20
) -> AsyncIterator[tuple[FrozenTeacher, list[str]]]:
    """Yield a teacher client with a worker on the bus, and the sequences requested from it."""
    bus, asked = MemoryBus(), list[str]()

    async def score(rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        scores = []
        for rollout in rollouts:
            batch = decode(rollout.sequence)
            tokens, logprobs = (column[batch.token("loss_mask").bool()] for column in candidates_of(batch))
            reply = empty_score(rollout, "teacher", "teacher-0")
            reply.candidates, reply.candidates_digest = encode_columns(
                {"tokens": tokens.int(), "logprobs": logprobs}
            )
            tamper(reply)
            asked.append(rollout.group_id.partition("/")[2])
            scores.append(reply)
        return scores

    worker = asyncio.create_task(
        ScoreWorker(bus.new_connection(), "teacher", frozenset({"train"}), score).run()
    )
    try:
        async with RolloutCollector(bus, 1, asyncio.Event(), lambda text: None) as exchange:
            scores = RowScorer(exchange, ["teacher"], 20.0, 1)
            yield FrozenTeacher(scores, FrozenScoreCache(folder, "teacher", 1), 2.5, most_kept), asked
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


async def read(teacher: FrozenTeacher, batch: Batch) -> dict[str, float]:
    step = StepRecord(1)
    await teacher.add_columns(batch, step)
    return step.metrics


async def test_candidates_are_added_and_cached(tmp_path: Path) -> None:
    async with teaching(tmp_path) as (teacher, asked):
        batch = rows([1, 2, 3], [1, 4], [5])
        figures = await read(teacher, batch)
        assert figures["teacher/kept_share"] == 0 and figures["seconds/teacher"] > 0
        tokens, logprobs = candidates_of(batch)
        assert batch.token("candidates").dtype == torch.int64
        assert torch.equal(batch.token("candidates"), tokens)
        torch.testing.assert_close(batch.token("candidate_logprobs"), logprobs)
        assert batch.scalars["candidates_temperature"] == 2.5
        assert sorted(asked) == ["0/0", "0/1", "0/2"]

        second = rows([7, 8], [1, 2, 3])
        assert (await read(teacher, second))["teacher/kept_share"] == 0.5
        assert torch.equal(second.token("candidates"), candidates_of(second)[0])
        assert asked[3:] == ["0/0"]


async def test_rows_beyond_the_cache_limit_are_requested_again(tmp_path: Path) -> None:
    async with teaching(tmp_path, most_kept=1) as (teacher, asked):
        for _ in range(2):
            for sequence in ([1, 2, 3], [1, 4]):
                batch = rows(sequence)
                await read(teacher, batch)
                assert torch.equal(batch.token("candidates"), candidates_of(batch)[0])
        assert len(asked) == 3  # the cache keeps the first batch and is then full


def of_another_length(score: scoring_pb2.Score) -> None:
    score.candidates, score.candidates_digest = encode_columns(
        {"tokens": torch.zeros(1, 2, dtype=torch.int32), "logprobs": torch.zeros(1, 2)}
    )


def cut_short(score: scoring_pb2.Score) -> None:
    score.candidates = score.candidates[:-1]


def given_up(score: scoring_pb2.Score) -> None:
    score.error, score.permanent = "the teacher's log-probabilities are not finite", True


@pytest.mark.parametrize(
    ("tamper", "cause"),
    [
        (of_another_length, r"the teacher sent \{.*\(1, 2\).*\} for the 2 response tokens of 0/0"),
        (cut_short, "the teacher's candidates for 0/0 cannot be decoded"),
        (given_up, "are not finite"),
    ],
)
async def test_invalid_candidates_fail_the_job(tamper: Tamper, cause: str, tmp_path: Path) -> None:
    async with teaching(tmp_path, tamper) as (teacher, _):
        with pytest.raises(UnrecoverableError, match=cause):
            await read(teacher, rows([1, 2, 3]))
