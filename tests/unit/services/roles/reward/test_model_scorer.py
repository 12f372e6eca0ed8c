"""Tokens that a reward model with the policy's tokenizer reads."""

import torch
from torch import Tensor

from kubealign.spec.algorithms import ScorePooling
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.reward.model_scorer import RolloutModel
from kubealign_services.scoring.reward_models import ModelReward


def rollout(*sequences: list[int]) -> rollout_pb2.Rollout:
    """Return a rollout of sequences, of which the first token is the prompt."""
    batch = pack(sequences, [f"0/0#0/{number}" for number in range(len(sequences))])
    batch.token_columns["loss_mask"] = (batch.positions > 0).to(torch.uint8)
    if len(sequences) > 1:
        batch.sequence_columns["truncated"] = torch.zeros(len(sequences), dtype=torch.uint8)
    return rollout_pb2.Rollout(sequence=encode(batch))


def test_the_last_sequence_of_an_episode_is_scored() -> None:
    def tokens_as_scores(batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        return {"values": batch.tokens.float()}

    model = RolloutModel(ModelReward(tokens_as_scores, ScorePooling.RESPONSE_SUM))
    scored = model.score_details([rollout([1, 2, 3]), rollout([4, 5], [6, 7, 8], [9, 10]), rollout([11, 12])])
    # The prompts 1, 9 and 11 do not count.
    assert scored.rewards.tolist() == [5, 10, 12]
