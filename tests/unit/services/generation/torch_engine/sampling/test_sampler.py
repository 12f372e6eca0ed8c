"""Sampling, against numbers computed by hand."""

import math

import numpy as np
import pytest
import torch

from kubealign_services.generation.torch_engine.sampling.philox import uniform_numbers
from kubealign_services.generation.torch_engine.sampling.sampler import (
    SampledTokens,
    SamplingInputs,
    apply_top_k_top_p,
    sample,
)

# Four tokens with probabilities 0.1, 0.4, 0.2, 0.3.
LOGITS = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()


def choose(
    uniform: list[float],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    forbidden: list[tuple[int, int]] | None = None,
) -> SampledTokens:
    n = len(uniform)
    pairs = (
        None
        if forbidden is None
        else (torch.tensor([r for r, _ in forbidden]), torch.tensor([t for _, t in forbidden]))
    )
    return sample(
        LOGITS.expand(n, -1),
        SamplingInputs(
            torch.full((n,), temperature),
            torch.full((n,), top_k),
            torch.full((n,), top_p, dtype=torch.float64),
            torch.tensor(uniform, dtype=torch.float64),
            has_truncation=top_k > 0 or top_p < 1,
            has_greedy=temperature == 0,
            forbidden=pairs,
        ),
    )


def test_the_inverse_of_the_cumulative_distribution() -> None:
    """Cumulative: 0.1, 0.5, 0.7, 1."""
    sampled = choose([0.0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, 1 - 2.0**-52])
    assert sampled.tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    expected = [math.log(p) for p in (0.1, 0.1, 0.4, 0.4, 0.2, 0.2, 0.3, 0.3)]
    assert sampled.behaviour_logprobs.tolist() == pytest.approx(expected, abs=1e-6)
    assert sampled.engine_logprobs.tolist() == pytest.approx(expected, abs=1e-6)


def test_temperature_flattens_both_distributions() -> None:
    """Temperature 2 takes square roots: 0.31623, 0.63246, 0.44721, 0.54772, sum 1.94362; cumulative .1627,
    .4881, .7182, 1."""
    sampled = choose([0.16, 0.17, 0.48, 0.5, 0.72], temperature=2.0)
    assert sampled.tokens.tolist() == [0, 1, 1, 2, 3]
    expected = [math.log(r / 1.943621) for r in (0.316228, 0.632456, 0.632456, 0.447214, 0.547723)]
    assert sampled.engine_logprobs.tolist() == pytest.approx(expected, abs=1e-5)
    assert sampled.behaviour_logprobs.tolist() == pytest.approx(expected, abs=1e-5)


def test_greedy_is_a_point_with_softmax_engine_logprobs() -> None:
    sampled = choose([0.0, 0.99], temperature=0.0)
    assert sampled.tokens.tolist() == [1, 1]
    assert sampled.behaviour_logprobs.tolist() == [0.0, 0.0]
    assert sampled.engine_logprobs.tolist() == pytest.approx([math.log(0.4)] * 2, abs=1e-6)


def test_top_k_renormalises() -> None:
    """The two likeliest tokens: 0.4 and 0.3, so 4/7 and 3/7, in vocabulary order."""
    sampled = choose([0.0, 0.57, 0.58, 0.99], top_k=2)
    assert sampled.tokens.tolist() == [1, 1, 3, 3]
    assert sampled.behaviour_logprobs.tolist() == pytest.approx(
        [math.log(4 / 7)] * 2 + [math.log(3 / 7)] * 2, abs=1e-6
    )
    assert sampled.engine_logprobs.tolist() == pytest.approx(
        [math.log(0.4)] * 2 + [math.log(0.3)] * 2, abs=1e-6
    )


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(0.01, [1]), (0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (0.89, [1, 2, 3]), (0.91, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_smallest_sufficient_set(top_p: float, expected: list[int]) -> None:
    """In descending order 0.4, 0.3, 0.2, 0.1, cumulative 0.4, 0.7, 0.9, 1."""
    cut = apply_top_k_top_p(LOGITS[None], torch.tensor([0]), torch.tensor([top_p], dtype=torch.float64))
    assert torch.isfinite(cut[0]).nonzero()[:, 0].tolist() == expected
    assert torch.equal(cut[0][expected], LOGITS[expected])


def test_top_p_applies_after_top_k() -> None:
    """The three likeliest have 4/9, 3/9, 2/9: 0.75 needs two of them, but three of all four tokens."""
    cut = apply_top_k_top_p(LOGITS[None], torch.tensor([3]), torch.tensor([0.75], dtype=torch.float64))
    assert torch.isfinite(cut[0]).tolist() == [False, True, False, True]


def test_of_equal_tokens_the_lower_id_is_kept() -> None:
    cut = apply_top_k_top_p(torch.zeros(1, 4), torch.tensor([2]), torch.tensor([1.0], dtype=torch.float64))
    assert torch.isfinite(cut[0]).tolist() == [True, True, False, False]


def test_forbidden_tokens_change_only_the_behaviour_distribution() -> None:
    """Without token 1: 1/6, 2/6, 3/6. Row 1 has no forbidden token."""
    sampled = choose([0.17, 0.17], forbidden=[(0, 1)])
    assert sampled.tokens.tolist() == [2, 1]
    assert sampled.behaviour_logprobs.tolist() == pytest.approx([math.log(2 / 6), math.log(0.4)], abs=1e-6)
    assert sampled.engine_logprobs.tolist() == pytest.approx([math.log(0.2), math.log(0.4)], abs=1e-6)
    assert choose([0.5], temperature=0.0, forbidden=[(0, 1)]).tokens.tolist() == [3]


def test_rows_with_different_parameters_are_independent() -> None:
    """Each row of a mixed batch gives the same result as alone: greedy, high temperature, top-k, top-p."""
    rows = [(0.0, 0, 1.0, 0.3), (2.0, 0, 1.0, 0.5), (1.0, 2, 1.0, 0.58), (1.0, 0, 0.41, 0.58)]
    columns = list(zip(*rows, strict=True))
    mixed = sample(
        LOGITS.expand(4, -1),
        SamplingInputs(
            torch.tensor(columns[0]),
            torch.tensor(columns[1]),
            torch.tensor(columns[2], dtype=torch.float64),
            torch.tensor(columns[3], dtype=torch.float64),
            has_truncation=True,
            has_greedy=True,
        ),
    )
    alone = [choose([u], temperature=t, top_k=k, top_p=p) for t, k, p, u in rows]
    assert mixed.tokens.tolist() == [each.tokens[0].item() for each in alone]
    assert mixed.behaviour_logprobs.tolist() == [each.behaviour_logprobs[0].item() for each in alone]
    assert mixed.engine_logprobs.tolist() == [each.engine_logprobs[0].item() for each in alone]


def test_tokens_of_probability_zero_are_never_sampled() -> None:
    """Forbidden first and last tokens, at both ends of the uniform numbers."""
    sampled = choose([0.0, 1 - 2.0**-52], forbidden=[(0, 0), (1, 3)])
    assert sampled.tokens.tolist() == [1, 2]


def test_frequencies_match_the_distribution() -> None:
    """20,000 seeds, top-k 3 of four tokens: 4/9, 2/9, 3/9. Chi-square with two degrees of freedom is below
    13.82 in 999 of 1,000."""
    n = 20_000
    drawn = choose(
        uniform_numbers(np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64)).tolist(), top_k=3
    ).tokens
    counts = torch.bincount(drawn, minlength=4).double()
    expected = torch.tensor([4, 2, 3]).double() / 9 * n
    assert counts[0] == 0
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 13.82
