"""Returns of tokens in REINFORCE++ with a discount and with the rewards of steps: by hand, and as loops."""

import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from support.batches import slow_spans, with_random_steps, with_steps

MakeBatch = Callable[..., Batch]
RESPONSES, GROUPS = [3, 1, 4, 2, 2, 5, 1, 3], [7, 7, 2, 2, 7, 2, 4, 7]
RAW = {"center": "None", "scale": "None"}


def advantages(batch: Batch, **fields: Any) -> list[float]:
    """Return the advantages of the response tokens, in the batch's order."""
    entry = {"reinforcePlusPlus": {"kl": {"fixed": {"coefficient": 0.0}}} | fields}
    make_algorithm(spec.Algorithm.model_validate(entry)).advantages(batch, {})
    assert not batch.token("advantages")[~batch.token("loss_mask").bool()].any()
    values: list[float] = batch.token("advantages")[batch.token("loss_mask").bool()].tolist()
    return values


def slow_returns(batch: Batch, rewards: list[float], penalty: list[float], gamma: float) -> list[float]:
    """OpenRLHF's get_cumulative_returns, with the rest of each reward at its last token."""
    steps = batch.token("turn_rewards").double().tolist()
    result = [0.0] * len(batch.tokens)
    for span, reward in zip(slow_spans(batch), rewards, strict=True):
        to_go = 0.0
        for token in reversed(span):
            rest = reward - sum(steps[each] for each in span) if token == span[-1] else 0.0
            to_go = steps[token] + rest - penalty[token] + gamma * to_go
            result[token] = to_go
    return result


def test_steps_by_hand(make_batch: MakeBatch) -> None:
    """Rewards 3 and 2, of which the steps give 1 + 0.5 and 2: rests 1.5 and 0 at the last tokens."""
    batch = with_steps(make_batch([3, 2], [0, 0]), {(0, 0): 1.0, (0, 1): 0.5, (1, 0): 2.0})
    batch.sequence_columns["rewards"] = torch.tensor([3.0, 2.0], dtype=torch.float64)
    assert advantages(batch, credit="Steps", advantage=RAW) == pytest.approx([3, 2, 1.5, 2, 0], abs=1e-9)
    # Mean 1.7, over the deviation of the five tokens.
    returns = [3, 2, 1.5, 2, 0]
    assert advantages(batch, credit="Steps") == pytest.approx(
        [(value - 1.7) / (statistics.stdev(returns) + 1e-6) for value in returns], abs=1e-9
    )
    # The response as a whole.
    assert advantages(batch, advantage=RAW) == pytest.approx([3, 3, 3, 2, 2], abs=1e-9)


def test_discount_by_hand(make_batch: MakeBatch) -> None:
    batch = with_steps(make_batch([3, 2], [0, 0]), {(0, 0): 1.0, (0, 1): 0.5, (1, 0): 2.0})
    batch.sequence_columns["rewards"] = torch.tensor([3.0, 2.0], dtype=torch.float64)
    assert advantages(batch, gamma=0.5, advantage=RAW) == pytest.approx([0.75, 1.5, 3, 1, 2], abs=1e-9)
    # 1.5; 0.5 + 0.75; 1 + 0.625; the rest of the second response is 0.
    assert advantages(batch, gamma=0.5, credit="Steps", advantage=RAW) == pytest.approx(
        [1.625, 1.25, 1.5, 2, 0], abs=1e-9
    )


def test_discount_of_a_compared_reward_by_hand(make_batch: MakeBatch) -> None:
    """Rewards 3 and 2 less their mean 2.5; normalised over the five tokens by Batch alone."""
    batch = make_batch([3, 2], [0, 0])
    batch.sequence_columns["rewards"] = torch.tensor([3.0, 2.0], dtype=torch.float64)
    fields = {"gamma": 0.5, "samplesPerPrompt": 2}
    actual = advantages(batch, advantage={"center": "Group", "scale": "None"}, **fields)
    assert actual == pytest.approx([0.125, 0.25, 0.5, -0.25, -0.5], abs=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_equals_a_plain_loop(seed: int, gamma: float, make_batch: MakeBatch) -> None:
    """With a KL penalty in the reward, for steps at some of the tokens."""
    generator = torch.Generator().manual_seed(seed)
    batch = with_random_steps(make_batch(RESPONSES, GROUPS, seed), generator)
    totals = torch.randn(len(RESPONSES), generator=generator, dtype=torch.float64)
    batch.sequence_columns["rewards"] = totals
    kl = {"placement": "Reward", "estimator": "K1", "fixed": {"coefficient": 0.3}}
    penalty = 0.3 * (batch.token("old_logprobs") - batch.token("reference_logprobs"))
    returns = slow_returns(batch, totals.tolist(), penalty.tolist(), gamma)
    responses = [returns[token] for span in slow_spans(batch) for token in span]
    mean, deviation = statistics.fmean(responses), statistics.stdev(responses) + 1e-6
    actual = advantages(batch, kl=kl, gamma=gamma, credit="Steps")
    assert actual == pytest.approx([(value - mean) / deviation for value in responses], abs=1e-9)


def test_a_batch_without_steps_has_the_returns_of_its_responses(make_batch: MakeBatch) -> None:
    batch = make_batch([3, 1], [0, 0])
    batch.sequence_columns["rewards"] = torch.tensor([1.0, 4.0], dtype=torch.float64)
    assert advantages(batch, credit="Steps", advantage=RAW) == [1, 1, 1, 4]
