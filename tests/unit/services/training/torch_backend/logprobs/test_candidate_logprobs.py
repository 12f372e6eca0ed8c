"""Log-probabilities of candidates and of the top-k tokens, in chunks."""

# mypy: disable-error-code="no-untyped-call"
import pytest
import torch

from kubealign_services.training.torch_backend.logprobs import chunked_logits
from kubealign_services.training.torch_backend.logprobs.candidate_logprobs import (
    candidate_logprobs,
    topk_logprobs,
)

#: One temperature per position.
MIXED = torch.tensor([0.5, 1.0, 2.0, 0.7, 0.7, 3.0, 1.5], dtype=torch.float64)


def test_logprobs_match_hand_computed_values() -> None:
    # hidden 1, weights log 1, log 2, log 3: probabilities 1/6, 2/6, 3/6. At temperature 1/2 the logits
    # double: 1, 4, 9 of 14.
    weight, hidden = torch.tensor([[1.0], [2.0], [3.0]]).double().log(), torch.ones(1, 1).double()
    candidates = torch.tensor([[2, 0]])
    actual = candidate_logprobs(hidden, weight, None, candidates, 1.0)
    torch.testing.assert_close(actual, torch.tensor([[3 / 6, 1 / 6]]).double().log())
    actual = candidate_logprobs(hidden, weight, None, candidates, 0.5)
    torch.testing.assert_close(actual, torch.tensor([[9 / 14, 1 / 14]]).double().log())
    tokens, logprobs = topk_logprobs(hidden, weight, None, 2, 0.5)
    assert tokens.tolist() == [[2, 1]]
    torch.testing.assert_close(logprobs, torch.tensor([[9 / 14, 4 / 14]]).double().log())


def leaves() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((7, 4), (9, 4), (9,))]


@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0, MIXED], ids=["1", "0.7", "3", "mixed"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_values_and_gradients_match_plain_torch(
    temperature: float | torch.Tensor, softcap: float | None, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_logits, "_CHUNK_LOGITS", rows * 9)
    divisor = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
    candidates = torch.stack([torch.randperm(9)[:3] for _ in range(7)])
    weights = torch.randn(7, 3, dtype=torch.float64)
    gradients = []
    for written_out in (True, False):
        hidden, weight, bias = leaves()
        if written_out:
            actual = candidate_logprobs(hidden, weight, bias, candidates, temperature, softcap)
        else:
            logits = hidden @ weight.T + bias
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            actual = torch.log_softmax(logits / divisor, -1).gather(-1, candidates)
        (weights * actual).sum().backward()
        gradients.append([actual, hidden.grad, weight.grad, bias.grad])
    for mine, autograds in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, autograds, atol=1e-12, rtol=1e-12)


def test_gradcheck_with_a_repeated_candidate() -> None:
    candidates = torch.tensor([[0, 0, 5]] * 7)
    assert torch.autograd.gradcheck(
        lambda hidden, weight, bias: candidate_logprobs(hidden, weight, bias, candidates, 0.8), leaves()
    )


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_chunk_size_does_not_affect_results(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        hidden, weight, bias = leaves()
        tokens, logprobs = topk_logprobs(hidden, weight, bias, 4, 0.8, 1.5)
        actual = candidate_logprobs(hidden, weight, bias, tokens, 0.8, 1.5)
        torch.testing.assert_close(actual, logprobs, atol=1e-12, rtol=0)
        (actual**2).sum().backward()
        assert hidden.grad is not None and weight.grad is not None and bias.grad is not None
        return [tokens, logprobs, hidden.grad, weight.grad, bias.grad]

    full = run()
    monkeypatch.setattr(chunked_logits, "_CHUNK_LOGITS", rows * 9)
    for part, expected in zip(run(), full, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-12, rtol=1e-12)


def test_top_k_is_limited_by_the_vocabulary() -> None:
    hidden, weight, _ = leaves()
    tokens, logprobs = topk_logprobs(hidden, weight, None, 32, 1.0)
    assert tokens.shape == (7, 9)
    torch.testing.assert_close(logprobs.exp().sum(-1), torch.ones(7, dtype=torch.float64))


def test_empty_input() -> None:
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    actual = candidate_logprobs(hidden, weight, None, torch.zeros((0, 2), dtype=torch.int64), 1.0)
    assert actual.shape == (0, 2)
    actual.sum().backward()
    assert weight.grad is not None and not weight.grad.any()
