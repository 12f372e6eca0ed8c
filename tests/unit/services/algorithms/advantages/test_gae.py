"""GAE against numbers worked by hand and against a loop over one sequence at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.algorithms.advantages.gae import gae, last_response_tokens, length_adaptive_lambda


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_one_sequence_by_hand() -> None:
    # gamma 0.5, lambda 0.5, so that gamma lambda = 0.25. Response: the last three of four tokens.
    #   delta_3 = 2 + 0.5 * 0 - 1         =  1        A_3 = 1
    #   delta_2 = 0 + 0.5 * 1 - 3         = -2.5      A_2 = -2.5 + 0.25 * 1      = -2.25
    #   delta_1 = 1 + 0.5 * 3 - 2         =  0.5      A_1 =  0.5 + 0.25 * -2.25  = -0.0625
    # R = A + V = 1.9375, 0.75, 2
    advantages, returns = gae(
        rewards=float64(9, 1, 0, 2),
        values=float64(9, 2, 3, 1),
        loss_mask=torch.tensor([0, 1, 1, 1]),
        cu_seqlens=torch.tensor([0, 4]),
        gamma=0.5,
        lambda_=0.5,
    )
    torch.testing.assert_close(advantages, float64(0, -0.0625, -2.25, 1), atol=1e-12, rtol=0)
    torch.testing.assert_close(returns, float64(0, 1.9375, 0.75, 2), atol=1e-12, rtol=0)


def test_masked_tokens_are_no_time_steps() -> None:
    # A tool's answer stands between the two response tokens: the first one's next state is the second one's.
    #   A_3 = 1 - 4 = -3        A_1 = (0 + 1 * 4 - 2) + 1 * -3 = -1
    advantages, returns = gae(
        float64(0, 0, 5, 1), float64(7, 2, 8, 4), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 4]), 1.0, 1.0
    )
    torch.testing.assert_close(advantages, float64(0, -1, 0, -3), atol=1e-12, rtol=0)
    torch.testing.assert_close(returns, float64(0, 1, 0, 1), atol=1e-12, rtol=0)


def test_with_lambda_one_the_return_is_the_discounted_sum_of_rewards() -> None:
    # gamma 0.5: R = 1 + 0.5 * 2 + 0.25 * 4 = 3, then 2 + 0.5 * 4 = 4, then 4, whatever the values are.
    _, returns = gae(float64(1, 2, 4), float64(3, -8, 5), torch.ones(3), torch.tensor([0, 3]), 0.5, 1.0)
    torch.testing.assert_close(returns, float64(3, 4, 4), atol=1e-12, rtol=0)


def test_lambda_of_each_sequence_equals_one_sequence_at_a_time() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths, prompt = [3, 0, 5, 1], 2
    total = sum(lengths) + prompt * len(lengths)
    rewards, values = torch.randn(2, total, dtype=torch.float64, generator=generator)
    mask = torch.tensor([each for n in lengths for each in [0] * prompt + [1] * n])
    cu_seqlens = torch.tensor([0, 5, 7, 14, 17])
    lambdas = float64(0.5, 0.9, 0.0, 1.0)
    advantages, returns = gae(rewards, values, mask, cu_seqlens, 0.9, lambdas)
    for number, (start, end) in enumerate(cu_seqlens.unfold(0, 2, 1).tolist()):
        part = slice(start, end)
        offsets = torch.tensor([0, end - start])
        alone = gae(rewards[part], values[part], mask[part], offsets, 0.9, float(lambdas[number]))
        torch.testing.assert_close(advantages[part], alone[0], atol=1e-12, rtol=0)
        torch.testing.assert_close(returns[part], alone[1], atol=1e-12, rtol=0)


def test_length_adaptive_lambda_by_hand() -> None:
    # Alpha 0.5: 1 - 1 / (0.5 * 8) = 0.75; 1 - 1 / 1 = 0; 1 - 1 / 0.5 is below 0; no response token at all.
    mask = torch.tensor([0] + [1] * 8 + [0, 1, 1] + [0, 1] + [0])
    lambdas = length_adaptive_lambda(mask, torch.tensor([0, 9, 12, 14, 15]), alpha=0.5)
    assert lambdas.tolist() == pytest.approx([0.75, 0, 0, 0])


def slow(rewards: list[float], values: list[float], gamma: float, lambda_: float) -> list[float]:
    """The definition: A_t = sum over k of (gamma lambda)^k delta_{t+k}, by a double loop over one
    response."""
    after = [*values, 0.0][1:]
    deltas = [r + gamma * n - v for r, v, n in zip(rewards, values, after, strict=True)]
    return [
        sum((gamma * lambda_) ** (k - t) * deltas[k] for k in range(t, len(deltas)))
        for t in range(len(deltas))
    ]


@settings(max_examples=40, deadline=None)
@given(
    responses=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
)
def test_packed_equals_one_at_a_time(responses: list[int], seed: int, gamma: float, lambda_: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = [2 + n for n in responses]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    mask = torch.tensor([flag for n in responses for flag in [0, 0] + [1] * n])
    rewards, values = torch.randn(2, int(offsets[-1]), dtype=torch.float64, generator=generator)
    advantages, returns = gae(rewards, values, mask, offsets, gamma, lambda_)

    expected: list[float] = []
    for start, count in zip(offsets.tolist(), responses, strict=False):
        span = slice(start + 2, start + 2 + count)
        expected += [0.0, 0.0, *slow(rewards[span].tolist(), values[span].tolist(), gamma, lambda_)]
    assert advantages.tolist() == pytest.approx(expected, abs=1e-9)
    torch.testing.assert_close(returns, (advantages + values) * mask, atol=1e-9, rtol=0)


def test_last_response_tokens_leave_out_sequences_without_a_response() -> None:
    tokens, sequences = last_response_tokens(torch.tensor([0, 1, 1, 0, 0, 1, 0]), torch.tensor([0, 3, 5, 7]))
    assert (tokens.tolist(), sequences.tolist()) == ([2, 5], [0, 2])


def test_the_dtype_is_the_values() -> None:
    advantages, returns = gae(torch.zeros(2), torch.zeros(2), torch.ones(2), torch.tensor([0, 2]), 1.0, 1.0)
    assert advantages.dtype == returns.dtype == torch.float32
