"""Assembly of groups into a packed batch, with numbers laid out by hand."""

import numpy as np
import pytest
import torch

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.codec import decode, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.batch_metrics import response_metrics
from kubealign_services.roles.driver.rollouts.batch_assembly import (
    SamplingInfo,
    assemble_batch,
    compute_staleness,
    find_oldest_version,
    has_mixed_versions,
)
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.training.expert_routing import ROUTING

SAMPLED = SamplingInfo(1.0, 4)


def group(name: str, versions: list[int], reward: float, reference: int | None = None) -> RolloutGroup:
    """Return a group with one sample: a prompt of one token, a response of len(versions) tokens."""
    length = 1 + len(versions)
    sequence = Batch(
        tokens=torch.arange(length, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        sample_ids=["?"],
        token_columns={
            "loss_mask": torch.tensor([0] + [1] * len(versions), dtype=torch.uint8),
            "behaviour_logprobs": torch.zeros(length),
            "engine_logprobs": torch.zeros(length),
            "weight_version": torch.tensor([-1, *versions], dtype=torch.int32),
        },
    )
    message = encode(sequence)
    rollout = rollout_pb2.Rollout(sequence=message, finish_reason=rollout_pb2.FINISH_REASON_LENGTH)
    complete = RolloutGroup(name, 1, min_version=0, deadline=0.0, requested_at=0.0, rollouts={0: rollout})
    complete.scores[0, message.digest, "exact"] = scoring_pb2.Score(reward=reward)
    if reference is not None:
        column = np.linspace(-1, 0, reference).astype("<f4").tobytes()
        complete.scores[0, message.digest, "reference"] = scoring_pb2.Score(logprobs=column)
    return complete


def test_groups_are_packed_in_order_with_their_columns() -> None:
    batch = assemble_batch(
        [group("0/5", [3, 3], 0.5, 3), group("0/2", [2], -1.0, 2)],
        ["exact"],
        SamplingInfo(0.7, 9),
        3,
        reference="reference",
    )
    assert batch.sample_ids == ["0/5#0", "0/2#0"]
    assert batch.tokens.tolist() == [0, 1, 2, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.sequence("group").tolist() == [0, 1]
    assert batch.sequence("reward.exact").tolist() == [0.5, -1.0]
    assert batch.sequence("truncated").tolist() == [1, 1]
    # linspace(-1, 0, 3) = -1, -.5, 0 and linspace(-1, 0, 2) = -1, 0
    assert batch.token("reference_logprobs").tolist() == [-1.0, -0.5, 0.0, -1.0, 0.0]
    assert batch.scalars == {"temperature": 0.7, "max_tokens": 9.0, "version": 3.0}


def test_samples_without_recorded_experts_are_marked_where_others_have_them() -> None:
    plain, recorded = group("0/5", [3, 3], 0.5), group("0/2", [2], -1.0)
    assert ROUTING not in assemble_batch([plain], ["exact"], SAMPLED, 3, None).token_columns
    sequence = decode(recorded.rollouts[0].sequence)
    sequence.token_columns[ROUTING] = torch.tensor([[[4, 1]], [[255, 255]]], dtype=torch.uint8)
    message = encode(sequence)
    recorded.rollouts[0].sequence.CopyFrom(message)
    recorded.scores[0, message.digest, "exact"] = scoring_pb2.Score(reward=-1.0)
    batch = assemble_batch([plain, recorded], ["exact"], SAMPLED, 3, None)
    assert batch.token(ROUTING).dtype is torch.uint8
    assert batch.token(ROUTING).tolist() == [[[255, 255]]] * 3 + [[[4, 1]], [[255, 255]]]


def test_samples_keep_the_temperatures_that_they_were_sampled_with() -> None:
    first, second = group("a", [3, 3], 0.5), group("b", [2], -1.0)
    sampling = SamplingInfo(0.7, 9)
    earlier = assemble_batch([first, second], ["exact"], sampling, 3, reference=None)
    first.rollouts[0].temperature = second.rollouts[0].temperature = 0.7
    same = assemble_batch([first, second], ["exact"], sampling, 3, reference=None)
    assert encode(same) == encode(earlier)
    second.rollouts[0].temperature = 0.25
    mixed = assemble_batch([first, second], ["exact"], sampling, 3, reference=None)
    assert mixed.sequence("temperature").tolist() == [0.7, 0.25]
    assert "temperature" not in mixed.scalars
    first.rollouts[0].ClearField("temperature")
    mixed = assemble_batch([first, second], ["exact"], SamplingInfo(0.5, 9), 3, reference=None)
    assert mixed.sequence("temperature").tolist() == [0.5, 0.25]


def test_staleness_counts_from_the_oldest_response_token() -> None:
    batch = assemble_batch(
        [group("a", [3, 1], 0.0), group("b", [4], 0.0)], ["exact"], SAMPLED, 4, reference=None
    )
    # trained at version 4: the oldest tokens are of versions 1 and 4
    assert compute_staleness(batch, 4).tolist() == [3, 0]
    assert find_oldest_version(group("a", [3, 1], 0.0)) == 1


def test_samples_of_the_reference_do_not_age() -> None:
    complete = group("a", [4, 5], 0.0)
    complete.rollouts[1] = group("a", [-1, -1, -1], 0.0).rollouts[0]
    complete.scores[1, complete.rollouts[1].sequence.digest, "exact"] = scoring_pb2.Score(reward=0.25)
    batch = assemble_batch([complete], ["exact"], SAMPLED, 6, reference=None)
    assert compute_staleness(batch, 6).tolist() == [2, 0]
    assert has_mixed_versions(batch).tolist() == [True, False]
    assert find_oldest_version(complete) == 4


def test_reference_logprobs_of_another_length_are_rejected() -> None:
    with pytest.raises(UnrecoverableError, match="2 log-probabilities for the 3 tokens of sample a#0"):
        assemble_batch([group("a", [1, 1], 0.0, reference=2)], ["exact"], SAMPLED, 1, reference="reference")


def test_greedy_samples_are_auxiliary_sequences() -> None:
    complete = group("a", [1, 1], 0.5)
    alone = group("a", [1], 0.25).rollouts[0]
    complete.samples, complete.rollouts[1] = 2, alone
    complete.scores[1, alone.sequence.digest, "exact"] = scoring_pb2.Score(reward=0.25)
    batch = assemble_batch(
        [complete], ["exact"], SamplingInfo(1.0, 4, auxiliary_samples=1), 1, reference=None
    )
    assert batch.sequence("companion").tolist() == [0, 1]
    assert drop_auxiliary(batch).sample_ids == ["a#0"]
    assert "companion" not in drop_auxiliary(batch).sequence_columns


def test_a_score_without_a_reward_is_a_reward_that_does_not_apply() -> None:
    groups = [group("0/5", [3], 0.0), group("0/2", [2], -1.0)]
    assert "applies.exact" not in assemble_batch(groups, ["exact"], SAMPLED, 3, None).sequence_columns
    for score in groups[1].scores.values():
        score.ClearField("reward")
    batch = decode(encode(assemble_batch(groups, ["exact"], SAMPLED, 3, None)))
    assert read_scores(batch, "exact") == [0.0, None]
    assert batch.sequence("reward.exact").tolist() == [0.0, 0.0]
    assert batch.sequence("applies.exact").tolist() == [1, 0]


def episode_of_two(name: str, reward: float) -> RolloutGroup:
    """Return a group with one sample of two sequences: one token, truncated, and two response tokens."""
    sequence = Batch(
        tokens=torch.tensor([5, 6, 7, 8, 9], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 2, 5], dtype=torch.int32),
        sample_ids=["?/0", "?/1"],
        token_columns={
            "loss_mask": torch.tensor([0, 1, 0, 1, 1], dtype=torch.uint8),
            "behaviour_logprobs": torch.tensor([0, -1, 0, -2, -3.0]),
            "engine_logprobs": torch.tensor([0, -4, 0, -5, -6.0]),
            "weight_version": torch.tensor([-1, 2, -1, 3, 4], dtype=torch.int32),
        },
        sequence_columns={"truncated": torch.tensor([1, 0], dtype=torch.uint8)},
    )
    message = encode(sequence)
    rollout = rollout_pb2.Rollout(
        sequence=message,
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
        turns=3,
        tool_errors=1,
        temperature=0.5,
    )
    turns = [rollout_pb2.TurnReward(token=1, reward=0.25), rollout_pb2.TurnReward(token=4, reward=0.75)]
    complete = RolloutGroup(name, 1, min_version=0, deadline=0.0, requested_at=0.0, rollouts={0: rollout})
    column = np.linspace(-1, 0, 5).astype("<f4").tobytes()
    for source, score in {
        "exact": scoring_pb2.Score(reward=reward),
        "won": scoring_pb2.Score(reward=1.0, steps=turns),
        "reference": scoring_pb2.Score(logprobs=column),
    }.items():
        complete.scores[0, message.digest, source] = score
    return complete


def test_sequences_of_an_episode_follow_one_another_and_share_its_rewards() -> None:
    single = group("0/1", [3], 0.5, reference=2)
    single.scores[0, single.rollouts[0].sequence.digest, "won"] = scoring_pb2.Score(reward=0.0)
    single.rollouts[0].turns = 1
    groups = [single, episode_of_two("0/2", -1.0)]
    batch = assemble_batch(groups, ["exact", "won"], SamplingInfo(0.7, 9), 4, reference="reference")
    assert batch.sample_ids == ["0/1#0", "0/2#0/0", "0/2#0/1"]
    assert batch.cu_seqlens.tolist() == [0, 2, 4, 7]
    assert batch.tokens.tolist() == [0, 1, 5, 6, 7, 8, 9]
    assert batch.sequence("sample").tolist() == [0, 1, 1]
    assert batch.sequence("group").tolist() == [0, 1, 1]
    assert batch.sequence("truncated").tolist() == [1, 1, 0]
    assert batch.sequence("reward.exact").tolist() == [0.5, -1.0, -1.0]
    assert batch.sequence("turns").tolist() == [1, 3, 3]
    assert batch.sequence("tool_errors").tolist() == [0, 1, 1]
    assert batch.sequence("temperature").tolist() == [0.7, 0.5, 0.5]
    assert batch.token("reference_logprobs").tolist() == [-1, 0, -1, -0.75, -0.5, -0.25, 0]
    assert batch.token("turn_reward.won").tolist() == [0, 0, 0, 0.25, 0, 0, 0.75]
    assert batch.token("weight_version").tolist() == [-1, 3, -1, 2, -1, 3, 4]
    assert compute_staleness(batch, 4).tolist() == [1, 2, 1]
    assert has_mixed_versions(batch).tolist() == [False, False, True]
    assert find_oldest_version(groups[1]) == 2


def test_metrics_count_turns_by_samples_and_lengths_by_sequences() -> None:
    single = group("0/1", [3], 0.5)
    single.rollouts[0].turns = 1
    batch = assemble_batch([single, episode_of_two("0/2", -1.0)], ["exact"], SamplingInfo(0.7, 9), 4, None)
    metrics = response_metrics(batch, 4)
    # Turns 1 and 3 of two samples; responses of 1, 1 and 2 tokens in three sequences.
    assert (metrics["rollout/turns"], metrics["rollout/tool_errors"]) == (2.0, 0.5)
    assert metrics["rollout/sequences_per_sample"] == 1.5
    assert (metrics["batch/sequences"], metrics["response/length"]) == (3, pytest.approx(4 / 3))
    assert "rollout/sequences_per_sample" not in response_metrics(
        assemble_batch([group("0/1", [3], 0.5)], ["exact"], SAMPLED, 4, None), 4
    )
