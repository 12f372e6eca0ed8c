"""One rank's part of the language-model head, compared with torch's own softmax in float64."""

import pytest
import torch
from torch import Tensor

from kubealign_services.training.megatron_backend.model.vocab_parallel_logprobs import (
    VocabularyShare,
    vocab_parallel_candidate_logprobs,
    vocab_parallel_collision,
    vocab_parallel_token_logprobs,
)
from kubealign_services.training.torch_backend.logprobs import chunked_logits

VOCABULARY, ROWS, WIDTH, PLACES = 11, 14, 5, 9
#: One temperature for all positions, and one for each.
TEMPERATURES = [0.7, torch.linspace(0.5, 2.0, PLACES, dtype=torch.float64)]
with_temperatures = pytest.mark.parametrize("temperature", TEMPERATURES, ids=["one", "mixed"])


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit chunks to four tokens, so that there are several chunks."""
    monkeypatch.setattr(chunked_logits, "_CHUNK_LOGITS", 4 * ROWS)


def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head with three rows of padding that are not zero, targets, candidates, and what flows
    back.
    """
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(PLACES, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (PLACES,), generator=generator)
    candidates = torch.randint(0, VOCABULARY, (PLACES, 3), generator=generator)
    back = torch.randn(2, PLACES, 3, dtype=torch.float64, generator=generator)
    return hidden, weight, targets, candidates, back


def by_torch(hidden: Tensor, weight: Tensor, temperature: float | Tensor) -> Tensor:
    divisor = temperature[:, None] if isinstance(temperature, Tensor) else temperature
    return (hidden @ weight[:VOCABULARY].T / divisor).log_softmax(-1)


@with_temperatures
@pytest.mark.parametrize("with_entropy", [False, True])
def test_log_probabilities_and_entropy(with_entropy: bool, temperature: float | Tensor) -> None:
    hidden, weight, targets, _, back = drawn()
    share = VocabularyShare.for_rank(VOCABULARY, ROWS, 0, None)
    logprobs, entropy = vocab_parallel_token_logprobs(
        hidden, weight, targets, temperature, with_entropy, share
    )
    actual = torch.autograd.grad((logprobs * back[0, :, 0] + entropy * back[1, :, 0]).sum(), (hidden, weight))
    log_p = by_torch(hidden, weight, temperature)
    expected = log_p.gather(-1, targets[:, None])[:, 0]
    wanted_entropy = -(log_p.exp() * log_p).sum(-1) * with_entropy
    gradients = torch.autograd.grad(
        (expected * back[0, :, 0] + wanted_entropy * back[1, :, 0]).sum(), (hidden, weight)
    )
    torch.testing.assert_close((logprobs, entropy), (expected, wanted_entropy), atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(actual, gradients, atol=1e-9, rtol=1e-9)
    assert not bool(actual[1][VOCABULARY:].any())


@with_temperatures
def test_collision(temperature: float | Tensor) -> None:
    hidden, weight, *_ = drawn()
    share = VocabularyShare.for_rank(VOCABULARY, ROWS, 0, None)
    actual = vocab_parallel_collision(hidden, weight, temperature, share)
    expected = by_torch(hidden, weight, temperature).detach().exp().square().sum(-1)
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)
    assert not actual.requires_grad


@with_temperatures
def test_candidates(temperature: float | Tensor) -> None:
    hidden, weight, _, candidates, back = drawn()
    share = VocabularyShare.for_rank(VOCABULARY, ROWS, 0, None)
    logprobs = vocab_parallel_candidate_logprobs(hidden, weight, candidates, temperature, share)
    actual = torch.autograd.grad((logprobs * back[0]).sum(), (hidden, weight))
    expected = by_torch(hidden, weight, temperature).gather(-1, candidates)
    gradients = torch.autograd.grad((expected * back[0]).sum(), (hidden, weight))
    torch.testing.assert_close(logprobs, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(actual, gradients, atol=1e-9, rtol=1e-9)


def test_rows_of_a_rank() -> None:
    """5 tokens on ranks of 2 rows: the third has one, a fourth none."""
    actual = [VocabularyShare.for_rank(5, 2, rank, None) for rank in range(4)]
    assert [(share.first, share.count) for share in actual] == [(0, 2), (2, 2), (4, 1), (6, 0)]
