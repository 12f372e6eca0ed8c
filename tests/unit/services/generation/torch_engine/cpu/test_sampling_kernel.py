"""The compiled sampling kernel, against the definition in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.generation.torch_engine.sampling.sampler import (
    SamplingInputs,
    sample,
    sample_by_torch,
)


def choice_of(
    temperature: list[float], uniform: list[float], forbidden: list[tuple[int, int]], **more: Any
) -> SamplingInputs:
    n = len(uniform)
    pairs = torch.tensor(forbidden, dtype=torch.int64).reshape(-1, 2)
    return SamplingInputs(
        temperature=torch.tensor(temperature),
        top_k=more.get("top_k", torch.zeros(n, dtype=torch.int64)),
        top_p=more.get("top_p", torch.ones(n, dtype=torch.float64)),
        uniform=torch.tensor(uniform, dtype=torch.float64),
        has_truncation="top_k" in more or "top_p" in more,
        has_greedy=0.0 in temperature,
        forbidden=(pairs[:, 0], pairs[:, 1]) if forbidden else None,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, SamplingInputs]:
    rows = draw(st.integers(1, 5))
    vocabulary = draw(st.sampled_from([3, 16, 64, 65, 100, 200]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    logits = torch.randn(rows, vocabulary, generator=generator) * draw(st.sampled_from([0.1, 3.0, 40.0]))
    temperature = [draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])) for _ in range(rows)]
    uniform = [draw(st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2.0**-52))) for _ in range(rows)]
    forbidden = draw(
        st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, vocabulary - 2)), unique=True, max_size=6)
    )
    return logits, choice_of(temperature, uniform, forbidden)


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_sampling_matches_the_definition(case: tuple[torch.Tensor, SamplingInputs]) -> None:
    """The token's interval of the cumulative distribution contains the uniform number, up to rounding; both
    log-probabilities equal those of float64.
    """
    logits, choice = case
    sampled = sample(logits, choice)
    for row, token in enumerate(sampled.tokens.tolist()):
        heat = float(choice.temperature[row]) or 1.0
        full = logits[row].double().numpy() / heat
        allowed = full.copy()
        if choice.forbidden is not None:
            allowed[choice.forbidden[1][choice.forbidden[0] == row].numpy()] = -np.inf
        shares = np.exp(allowed - allowed.max())
        cumulative = np.cumsum(shares) / shares.sum()
        tolerance = 1e-5 * max(1.0, float(np.abs(full).max()))
        assert float(sampled.engine_logprobs[row]) == pytest.approx(
            full[token] - np.logaddexp.reduce(full), abs=tolerance
        )
        if choice.temperature[row] == 0:
            assert token == allowed.argmax()
            assert sampled.behaviour_logprobs[row] == 0
            continue
        uniform = float(choice.uniform[row])
        before = cumulative[token - 1] if token else 0.0
        assert before - 1e-6 <= uniform <= cumulative[token] + 1e-6
        assert shares[token] > 0
        assert float(sampled.behaviour_logprobs[row]) == pytest.approx(
            allowed[token] - np.logaddexp.reduce(allowed), abs=tolerance
        )


def test_forbidden_tokens_may_dominate() -> None:
    """Token 0 has all probability: without it the others are equally likely."""
    logits = torch.zeros(2, 5)
    logits[:, 0] = 300.0
    sampled = sample(logits, choice_of([1.0, 0.0], [0.3, 0.3], [(0, 0), (1, 0)]))
    assert sampled.tokens.tolist() == [2, 1]
    assert sampled.behaviour_logprobs.tolist() == pytest.approx([-np.log(4), 0.0])
    assert sampled.engine_logprobs.tolist() == pytest.approx([-300.0, -300.0])


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("column", [0, 70, 99])
def test_nan_propagates(wrong: float, temperature: float, column: int) -> None:
    """NaN appears in the log-probabilities of its row only."""
    logits = torch.zeros(3, 100)
    logits[1, column] = wrong
    sampled = sample(logits, choice_of([temperature] * 3, [0.5] * 3, []))
    finite = torch.isfinite(sampled.behaviour_logprobs + sampled.engine_logprobs)
    assert finite.tolist() == [True, False, True]


def test_greedy_takes_the_first_of_equal_logits() -> None:
    """Two logits differ in float32 although their weights are equal."""
    logits = torch.full((1, 80), -1.0)
    logits[0, 70], logits[0, 75], logits[0, 79] = 1e-9, 2e-9, 2e-9
    assert sample(logits, choice_of([0.0], [0.9], [])).tokens.tolist() == [75]


def test_truncated_and_untruncated_rows() -> None:
    """Each row equals torch's result regardless of the other rows."""
    torch.manual_seed(1)
    logits = torch.randn(6, 150)
    top_k = torch.tensor([0, 5, 0, 0, 1, 0])
    top_p = torch.tensor([1.0, 1.0, 0.4, 1.0, 1.0, 1.0], dtype=torch.float64)
    choice = choice_of(
        [1.0, 0.7, 1.3, 0.0, 1.0, 0.9],
        [0.1, 0.2, 0.7, 0.9, 0.5, 0.6],
        [(2, 7), (0, 3), (2, 9)],
        top_k=top_k,
        top_p=top_p,
    )
    actual, expected = sample(logits, choice), sample_by_torch(logits, choice)
    assert torch.equal(actual.tokens, expected.tokens)
    torch.testing.assert_close(actual.behaviour_logprobs, expected.behaviour_logprobs, atol=2e-6, rtol=0)
    torch.testing.assert_close(actual.engine_logprobs, expected.engine_logprobs, atol=2e-6, rtol=0)
