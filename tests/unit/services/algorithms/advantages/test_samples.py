"""Advantages and losses of samples with several sequences: by hand, and against the same samples in one."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.samples import add_advantages
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.factory import load_algorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.samples import merge_samples
from support.batches import random_batch, stand_in

IN_REWARD = spec.KL(fixed=spec.FixedKL(coefficient=2))
NO_KL = spec.KL(fixed=spec.FixedKL(coefficient=0))
IN_LOSS = spec.KL(placement=spec.KLPlacement.LOSS, fixed=spec.FixedKL(coefficient=0.1))
SPECS: dict[str, type[spec.OnPolicySpec]] = {
    "reinforce": spec.ReinforceSpec,
    "reinforce_plus_plus": spec.ReinforcePlusPlusSpec,
    "rloo": spec.RLOOSpec,
    "grpo": spec.GRPOSpec,
    "deepseek_math": spec.DeepSeekMathSpec,
    "dr_grpo": spec.DrGRPOSpec,
    "dapo": spec.DAPOSpec,
    "gspo": spec.GSPOSpec,
    "cispo": spec.CISPOSpec,
    "ppo": spec.PPOSpec,
}


def make(name: str, **fields: Any) -> Algorithm:
    return load_algorithm(name)(SPECS[name](**fields))


def split(batch: Batch) -> tuple[Batch, torch.Tensor]:
    """Cut each response of two tokens or more in two sequences, the second of which has a prompt of its own,
    of two tokens. Return the batch and the positions of the response tokens in the original one.
    """
    bounds, mask = batch.cu_seqlens.tolist(), batch.token("loss_mask").bool()
    rows: list[list[int]] = []
    names: list[str] = []
    samples: list[int] = []
    for sample, (start, end) in enumerate(pairwise(bounds)):
        first = start + int(mask[start:end].nonzero()[0])
        cut = first + (end - first) // 2
        pieces = [[start, end]] if cut == first else [[start, cut], [cut, end]]
        for number, (left, right) in enumerate(pieces):
            rows.append([-1, -1] * number + list(range(left, right)))
            names.append(f"{100 * sample + number}")
            samples.append(sample)
    result = pack(rows, names)
    positions = torch.tensor([position for row in rows for position in row])
    is_new = positions < 0
    for name, column in batch.token_columns.items():
        result.token_columns[name] = column[positions.clamp(min=0)].masked_fill(is_new, 0)
    index = torch.tensor(samples)
    result.sequence_columns = {name: column[index] for name, column in batch.sequence_columns.items()}
    result.sequence_columns["sample"] = index
    result.scalars = dict(batch.scalars)
    return result, positions


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kl", [IN_REWARD, NO_KL], ids=["kl", "no_kl"])
def test_advantages_equal_those_of_the_same_samples_in_one_sequence(name: str, kl: spec.KL) -> None:
    """Statistics are those of four samples in two groups, not of their seven sequences."""
    unsplit = random_batch([4, 1, 5, 3], [0, 0, 1, 1])
    parts, positions = split(unsplit)
    assert (len(unsplit), len(parts)) == (4, 7)
    algorithm = make(name, kl=kl, samples_per_prompt=2)
    expected, metrics = algorithm.advantages(unsplit, {}), add_advantages(algorithm, parts, {})
    assert metrics == pytest.approx(expected)
    mask = parts.token("loss_mask").bool()
    for column in {"advantages", "returns", "old_values"} & unsplit.token_columns.keys():
        assert parts.token(column)[mask].tolist() == pytest.approx(
            unsplit.token(column)[positions[mask]].tolist(), abs=1e-12
        )
        assert not parts.token(column)[~mask].any() or column == "old_values"
    assert parts.sequence("shaped_rewards").tolist() == pytest.approx(
        unsplit.sequence("rewards")[parts.sequence("sample")].tolist()
    )


def two_branches(rewards: tuple[float, float]) -> Batch:
    """Two samples of one prompt: a response of 2 tokens, and an episode with responses of 1 and 3 tokens."""
    batch = pack([[7, 8, 8], [7, 8], [7, 7, 8, 8, 8]], ["0", "1", "2"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=torch.uint8)
    zeros = torch.zeros(10, dtype=torch.float64)
    batch.token_columns |= {"behaviour_logprobs": zeros, "old_logprobs": zeros, "engine_logprobs": zeros}
    batch.sequence_columns = {
        "rewards": torch.tensor([rewards[0], rewards[1], rewards[1]], dtype=torch.float64),
        "group": torch.tensor([0, 0, 0]),
        "sample": torch.tensor([0, 1, 1]),
        "truncated": torch.zeros(3, dtype=torch.uint8),
    }
    batch.scalars |= {"max_tokens": 4.0, "temperature": 1.0}
    return batch


def test_grpo_by_hand() -> None:
    # Rewards 1 and 4: mean 2.5, deviation sqrt(2 * 1.5^2 / 1). Over sequences it would be 1, 4, 4: mean 3.
    batch = two_branches((1.0, 4.0))
    metrics = add_advantages(make("grpo", kl=NO_KL, samples_per_prompt=2), batch, {})
    unit = 1.5 / (math.sqrt(4.5) + 1e-6)
    expected = [0, -unit, -unit, 0, unit, 0, 0, unit, unit, unit]
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-9)
    assert metrics["return/mean"] == 2.5


def test_gae_runs_through_the_sequences_of_an_episode_by_hand() -> None:
    # gamma 1, lambda 0.5; the reward 4 follows the last token of the last sequence.
    #   delta of the second sequence: 2 - 1 = 1, 3 - 2 = 1, 4 - 3 = 1
    #   A = 1, 1 + 0.5, 1 + 0.75 from the last token on
    #   delta of the first sequence: the value of the second one's first token, 1, - 5 = -4
    #   A = -4 + 0.5 * 1.75
    batch = two_branches((0.0, 4.0))
    batch.token_columns["values"] = torch.tensor([0, 0, 0, 0, 5, 0, 0, 1, 2, 3], dtype=torch.float64)
    raw = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE, scale=spec.AdvantageScale.NONE)
    ppo = make("ppo", kl=NO_KL, advantage=raw, gae=spec.GAE(gamma=1.0, lambda_=0.5))
    add_advantages(ppo, batch, {})
    assert batch.token("advantages").tolist() == pytest.approx([0, 0, 0, 0, -3.125, 0, 0, 1.75, 1.5, 1])
    assert batch.token("returns").tolist() == pytest.approx([0, 0, 0, 0, 1.875, 0, 0, 2.75, 3.5, 4])


def test_rewards_of_turns_stay_in_their_own_sequence_by_hand() -> None:
    # The episode earned 3 of its reward 4 in its first sequence; the rest, 1, follows the last one.
    batch = two_branches((0.0, 4.0))
    batch.token_columns["values"] = torch.zeros(10, dtype=torch.float64)
    batch.token_columns["turn_rewards"] = torch.tensor([0, 0, 0, 0, 3.0, 0, 0, 0, 0, 0])
    raw = spec.AdvantageNormalization(center=spec.AdvantageCenter.NONE, scale=spec.AdvantageScale.NONE)
    ppo = make("ppo", kl=NO_KL, advantage=raw, gae=spec.GAE(gamma=1.0, lambda_=1.0))
    add_advantages(ppo, batch, {})
    assert batch.token("advantages").tolist() == pytest.approx([0, 0, 0, 0, 4, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    ("aggregation", "shares"),
    [
        # Two samples with 2 and 1 + 3 tokens.
        ("SequenceMean", [1 / 4] * 2 + [1 / 8] * 4),
        ("TokenMean", [1 / 6] * 6),
        ("SequenceSum", [1 / 2] * 6),
        ("FixedLength", [1 / 8] * 6),
    ],
)
def test_losses_average_over_samples_by_hand(aggregation: str, shares: list[float]) -> None:
    batch = two_branches((1.0, 4.0))
    entry = spec.GRPOSpec(kl=IN_LOSS, samples_per_prompt=2, aggregation=spec.LossAggregation(aggregation))
    objective = load_algorithm("grpo")(entry).policy_objective()
    del batch.token_columns["old_logprobs"]
    objective.prepare(batch)
    mask = batch.token("loss_mask").bool()
    assert batch.token("loss_shares")[mask].tolist() == pytest.approx(shares)
    # kl/reference_sequence is the KL of a sample: six tokens of two samples.
    assert batch.scalars["kl_tokens_a_response"] == 3.0


def test_truncated_sequences_are_masked_one_by_one() -> None:
    batch = two_branches((1.0, 4.0))
    batch.sequence_columns["truncated"] = torch.tensor([0, 1, 0], dtype=torch.uint8)
    entry = spec.GRPOSpec(kl=NO_KL, samples_per_prompt=2, mask_truncated=True, aggregation="SequenceMean")
    load_algorithm("grpo")(entry).policy_objective().prepare(batch)
    assert batch.token("loss_shares").tolist() == pytest.approx(
        [0, 1 / 4, 1 / 4, 0, 0, 0, 0, 1 / 6, 1 / 6, 1 / 6]
    )


def test_the_overlong_penalty_is_that_of_the_longest_sequence_by_hand() -> None:
    # Limit 4, buffer 2: responses of 2 and 3 tokens lose 0 and 1/2, whatever the episode has in all.
    batch = two_branches((1.0, 4.0))
    overlong = spec.OverlongPenalty(buffer_tokens=2, penalty=1.0)
    metrics = add_advantages(make("grpo", kl=NO_KL, samples_per_prompt=2, overlong=overlong), batch, {})
    assert batch.sequence("shaped_rewards").tolist() == [1.0, 3.5, 3.5]
    assert metrics["reward/overlong_penalty"] == 0.25


@pytest.mark.parametrize("name", SPECS)
def test_the_gradient_does_not_depend_on_the_split_of_the_sequences(name: str) -> None:
    """The loss of a minibatch is the sum of those of its sequences, in microbatches of any division."""
    parts, _ = split(random_batch([4, 1, 5, 3], [0, 0, 1, 1]))
    algorithm = make(name, kl=NO_KL, samples_per_prompt=2)
    add_advantages(algorithm, parts, {})
    objective = algorithm.policy_objective()
    objective.prepare(parts)
    weights = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64, requires_grad=True)
    loss = objective.loss(stand_in(parts, weights), parts).loss
    (expected,) = torch.autograd.grad(loss, weights)
    pieces = [parts.select([index]) for index in range(len(parts))]
    split_loss = sum(
        (objective.loss(stand_in(piece, weights), piece).loss for piece in pieces), torch.tensor(0.0)
    )
    (gradient,) = torch.autograd.grad(split_loss, weights)
    assert gradient.tolist() == pytest.approx(expected.tolist(), abs=1e-9)


def test_one_sequence_for_each_sample_gives_the_bytes_of_the_algorithm_alone() -> None:
    batch = random_batch([4, 1, 5, 3], [0, 0, 1, 1])
    alone = replace(
        batch, token_columns=dict(batch.token_columns), sequence_columns=dict(batch.sequence_columns)
    )
    algorithm = make("grpo", kl=NO_KL, samples_per_prompt=2)
    assert merge_samples(batch) is batch
    assert add_advantages(algorithm, batch, {}) == algorithm.advantages(alone, {})
    assert torch.equal(batch.token("advantages"), alone.token("advantages"))
    assert batch.sequence_columns.keys() == alone.sequence_columns.keys()
