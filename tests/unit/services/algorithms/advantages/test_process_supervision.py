"""Process supervision: by hand, and against DeepSeekMath's formula written as loops."""

import statistics
from collections.abc import Callable

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.process_supervision import process_advantages
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from support.batches import slow_spans, with_random_steps, with_steps

MakeBatch = Callable[..., Batch]
GROUPS = [7, 7, 2, 2, 7, 2, 4, 7]
NORM = spec.AdvantageNormalization(center=spec.AdvantageCenter.GROUP, scale=spec.AdvantageScale.GROUP)


def normalised(values: list[float]) -> list[float]:
    """(value - mean) / (std + 1e-6) with n - 1; the deviation of one value is 0."""
    mean, deviation = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    return [(value - mean) / (deviation + 1e-6) for value in values]


def slow_advantages(batch: Batch, returns: list[float]) -> list[float]:
    spans, group = slow_spans(batch), batch.sequence("group").tolist()
    rewards, ends = batch.token("turn_rewards").double().tolist(), batch.token("turn_ends").tolist()
    result = [0.0] * len(batch.tokens)
    for number in set(group):
        members = [index for index in range(len(spans)) if group[index] == number]
        steps = [token for index in members for token in spans[index] if ends[token]]
        scores = dict(
            zip(steps, normalised([rewards[token] for token in steps]) if steps else (), strict=True)
        )
        rest = normalised([returns[i] - sum(rewards[token] for token in spans[i]) for i in members])
        for index, outcome in zip(members, rest, strict=True):
            for token in spans[index]:
                later = [score for end, score in scores.items() if end in spans[index] and end >= token]
                result[token] = outcome + sum(later)
    return result


def test_by_hand(make_batch: MakeBatch) -> None:
    """Step rewards 1, 0 and 0, 1, 0.5 of a prompt: mean 0.5, deviation 0.5: 1, -1 and -1, 1, 0. The returns
    are the sums, so that no rest is left."""
    batch = with_steps(
        make_batch([3, 4], [0, 0]), {(0, 0): 1.0, (0, 2): 0.0, (1, 1): 0.0, (1, 2): 1.0, (1, 3): 0.5}
    )
    advantages = process_advantages(batch, torch.tensor([1.0, 1.5]), NORM)
    first, second = slow_spans(batch)
    assert advantages[first].tolist() == pytest.approx([0, -1, -1], abs=1e-5)
    assert advantages[second].tolist() == pytest.approx([0, 0, 1, 0], abs=1e-5)
    assert advantages.abs().sum() == pytest.approx(3, abs=1e-4)


def test_a_rest_is_the_reward_of_the_response(make_batch: MakeBatch) -> None:
    """Rests 2 and 0: mean 1, deviation sqrt(2). The only step of the group is compared with none."""
    batch = with_steps(make_batch([2, 1], [0, 0]), {(0, 0): 1.0})
    advantages = process_advantages(batch, torch.tensor([3.0, 0.0]), NORM)
    first, second = slow_spans(batch)
    assert advantages[first].tolist() == pytest.approx([0.5**0.5] * 2, abs=1e-5)
    assert advantages[second].tolist() == pytest.approx([-(0.5**0.5)], abs=1e-5)


def test_rounding_of_the_sums_is_no_rest(make_batch: MakeBatch) -> None:
    batch = with_steps(make_batch([3, 3], [0, 0]), {(0, 0): 0.1, (0, 2): 0.2, (1, 0): 0.7, (1, 2): 0.1})
    exact = torch.tensor([0.1 + 0.2, 0.7 + 0.1], dtype=torch.float64)
    advantages = process_advantages(batch, exact.float(), NORM)
    column = batch.token("turn_rewards").double()
    sums = [float(column[span].sum()) for span in slow_spans(batch)]
    expected = slow_advantages(batch, sums)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-9)


def test_a_batch_without_steps_has_the_advantages_of_its_responses(make_batch: MakeBatch) -> None:
    batch = make_batch([3, 1], [0, 0])
    assert process_advantages(batch, torch.tensor([1.0, 0.0]), NORM)[
        slow_spans(batch)[0]
    ].tolist() == pytest.approx([0.5**0.5] * 3, abs=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_equals_a_plain_loop(seed: int, make_batch: MakeBatch) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch = with_random_steps(make_batch([3, 1, 4, 2, 2, 5, 1, 3], GROUPS, seed), generator)
    returns = torch.randn(8, generator=generator, dtype=torch.float64)
    expected = slow_advantages(batch, returns.tolist())
    assert process_advantages(batch, returns, NORM).tolist() == pytest.approx(expected, abs=1e-9)
    # And through the algorithm, whose columns have the dtype of the log-probabilities.
    batch.sequence_columns["rewards"] = returns
    entry = spec.Algorithm.model_validate({"grpo": {"credit": "Steps"}})
    make_algorithm(entry).advantages(batch, {})
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-6)
