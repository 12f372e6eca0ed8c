"""Scores of a frozen model: split per rollout, and failures that a retry cannot repair."""

import torch
from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2, training_pb2
from kubealign_services.batch.codec import decode_columns, encode
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.scoring.frozen_scorer import FrozenScorer, NonFiniteScores, decode_sequences
from kubealign_services.training.expert_routing import ROUTING
from support.scorer_context import scorer_context

SEQUENCES = [[1, 2, 3], [4], [5, 6]]


class DoubledTokens(FrozenScorer):
    """A stand-in model whose column is twice the token; token 9 makes its output NaN."""

    source = "doubled"

    def __init__(self) -> None:
        super().__init__(scorer_context("doubled-0"), None)  # type: ignore[arg-type]

    def compute_columns(self, batch: Batch) -> dict[str, Tensor]:
        if 9 in batch.tokens.tolist():
            raise NonFiniteScores("the output is not finite")
        return {"doubled": 2 * batch.tokens.float()}

    def write_score(self, score: scoring_pb2.Score, sequence: Batch) -> None:
        score.logprobs = sequence.token("doubled").numpy().tobytes()


def rollouts(*sequences: list[int]) -> list[rollout_pb2.Rollout]:
    return [
        rollout_pb2.Rollout(fence=3, group_id=str(index), sequence=encode(pack([tokens], ["?"])))
        for index, tokens in enumerate(sequences)
    ]


async def test_each_rollout_gets_the_columns_of_its_own_tokens() -> None:
    given = rollouts(*SEQUENCES)
    scores = await DoubledTokens()(given)
    assert [(score.group_id, score.digest) for score in scores] == [
        (rollout.group_id, rollout.sequence.digest) for rollout in given
    ]
    assert {(score.fence, score.source, score.worker) for score in scores} == {(3, "doubled", "doubled-0")}
    for score, tokens in zip(scores, SEQUENCES, strict=True):
        expected = 2 * torch.tensor(tokens, dtype=torch.float32)
        assert score.logprobs == expected.numpy().tobytes()
        assert score.seconds > 0


async def test_an_output_that_is_not_finite_fails_every_rollout_permanently() -> None:
    scores = await DoubledTokens()(rollouts([1, 2], [9], [3]))
    assert [(score.group_id, score.error, score.permanent) for score in scores] == [
        (name, "the output is not finite", True) for name in ("0", "1", "2")
    ]


async def test_a_direct_call_gets_the_columns_with_their_prefix() -> None:
    reply = await DoubledTokens().forward(training_pb2.ForwardRequest(batch=encode(pack([[1, 2]], ["?"]))))
    columns = decode_columns(reply.columns, reply.digest)
    assert {name: column.tolist() for name, column in columns.items()} == {"token.doubled": [2.0, 4.0]}


def test_recorded_experts_are_left_out() -> None:
    """The samples of the policy have them, those of the reference have not."""
    plain, recorded = pack([[1, 2, 3]], ["plain"]), pack([[4, 5]], ["recorded"])
    recorded.token_columns[ROUTING] = torch.zeros(2, 1, 2, dtype=torch.uint8)
    batch = decode_sequences([rollout_pb2.Rollout(sequence=encode(each)) for each in (recorded, plain)])
    assert batch.tokens.tolist() == [4, 5, 1, 2, 3] and not batch.token_columns
