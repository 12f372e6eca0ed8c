"""Optimal token baseline, against verl's compute_optimal_token_baseline_advantage written as loops."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.optimal_token import optimal_token_advantages
from kubealign_services.algorithms.contract import outputs_before_step
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from support.batches import slow_spans

CENTER = {"advantage": {"center": "OptimalToken"}}


def with_collision(batch: Batch) -> Batch:
    """Collision probabilities of a distribution in which the sampled token has its probability."""
    probabilities = batch.token("old_logprobs").clamp(max=0).exp()
    batch.token_columns["old_logprobs"] = probabilities.log()
    batch.token_columns["old_collision"] = probabilities**2 + 0.3 * (1 - probabilities) ** 2
    return batch


def slow_advantages(batch: Batch, returns: list[float]) -> list[float]:
    """B_t = sum of G_t W_t / (sum of W_t + 1e-8) over a group, W_t the running sum of 1 - 2 pi + sum pi^2."""
    spans, group = slow_spans(batch), batch.sequence("group").tolist()
    result = [0.0] * len(batch.tokens)
    running: list[list[float]] = []
    for span in spans:
        sums, total = [], 0.0
        for token in span:
            p = float(batch.token("old_logprobs")[token].exp())
            total += 1 - 2 * p + float(batch.token("old_collision")[token])
            sums.append(total)
        running.append(sums)
    for own, span in enumerate(spans):
        for t, token in enumerate(span):
            reach = [i for i in range(len(spans)) if group[i] == group[own] and len(spans[i]) > t]
            numerator = sum(returns[i] * running[i][t] for i in reach)
            denominator = sum(running[i][t] for i in reach) + 1e-8
            result[token] = returns[own] - numerator / denominator
    return result


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_plain_loop(seed: int, make_batch: Callable[..., Batch]) -> None:
    batch = with_collision(make_batch([3, 1, 4, 2, 2, 5, 1, 3], [7, 7, 2, 2, 7, 2, 4, 7], seed))
    returns = batch.sequence("rewards")
    actual = optimal_token_advantages(batch, returns)
    assert actual.tolist() == pytest.approx(slow_advantages(batch, returns.tolist()), abs=1e-9)


def test_by_hand(make_batch: Callable[..., Batch]) -> None:
    """w = 1 - 2 (0.5) + 0.5 = 0.5 at each token of the first response, 0.25 at each of the second. At the
    first token B = (0.5 * 1 + 0.25 * 0) / 0.75; the second is reached by the first response only."""
    batch = make_batch([2, 1], [0, 0])
    spans = slow_spans(batch)
    batch.token_columns["old_logprobs"] = torch.full((len(batch.tokens),), 0.5, dtype=torch.float64).log()
    batch.token_columns["old_collision"] = torch.full((len(batch.tokens),), 9.0, dtype=torch.float64)
    batch.token_columns["old_collision"][spans[0]] = 0.5
    batch.token_columns["old_collision"][spans[1]] = 0.25
    advantages = optimal_token_advantages(batch, torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert advantages[spans[0]].tolist() == pytest.approx([1 / 3, 0], abs=1e-6)
    assert advantages[spans[1]].tolist() == pytest.approx([-2 / 3], abs=1e-6)


def test_an_algorithm_has_advantages_of_tokens(make_batch: Callable[..., Batch]) -> None:
    algorithm = make_algorithm(spec.Algorithm.model_validate({"grpo": CENTER | {"kl": NO_KL}}))
    assert outputs_before_step(algorithm) == ("logprobs", "collision")
    batch = with_collision(make_batch([3, 1, 4, 2], [0, 0, 1, 1]))
    metrics = algorithm.advantages(batch, {})
    expected = slow_advantages(batch, batch.sequence("rewards").tolist())
    assert batch.token("advantages").tolist() == pytest.approx(expected, abs=1e-9)
    response = batch.token("loss_mask").bool()
    assert metrics["advantage/mean"] == pytest.approx(float(batch.token("advantages")[response].mean()))


NO_KL: dict[str, Any] = {"placement": "Loss", "fixed": {"coefficient": 0.0}}


@pytest.mark.parametrize("name", ["rloo", "reinforce", "ppo"])
def test_other_algorithms_refuse_it(name: str) -> None:
    with pytest.raises(ValueError, match="OptimalToken is for grpo"):
        spec.Algorithm.model_validate({name: CENTER | {"samplesPerPrompt": 4}})
