"""Log-probabilities from hidden states, in chunks."""

# mypy: disable-error-code="no-untyped-call"
import math

import pytest
import torch

from kubealign_services.training.torch_backend.logprobs import chunked_logits as module
from kubealign_services.training.torch_backend.logprobs.token_logprobs import token_logprobs

#: One temperature per position.
MIXED = torch.tensor([0.5, 1.0, 2.0, 0.7, 0.7, 3.0], dtype=torch.float64)


def test_logprobs_match_hand_computed_values() -> None:
    # hidden [1], weights log 1, log 2, log 3: probabilities 1/6, 2/6, 3/6. At temperature 1/2 the logits
    # double: 1, 4, 9 of 14.
    weight = torch.tensor([[1.0], [2.0], [3.0]]).double().log()
    hidden = torch.ones(2, 1).double()
    targets = torch.tensor([2, 0])
    logprobs, entropy = token_logprobs(hidden, weight, None, targets, 1.0, True)
    torch.testing.assert_close(logprobs, torch.tensor([3 / 6, 1 / 6]).double().log())
    expected = -sum(p * math.log(p) for p in (1 / 6, 2 / 6, 3 / 6))
    torch.testing.assert_close(entropy, torch.tensor([expected, expected]).double())
    logprobs, _ = token_logprobs(hidden, weight, None, targets, 0.5, False)
    torch.testing.assert_close(logprobs, torch.tensor([9 / 14, 1 / 14]).double().log())


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_chunk_size_does_not_affect_results(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        hidden = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
        logprobs, entropy = token_logprobs(hidden, weight, bias, torch.arange(7) % 5, 0.8, True)
        (logprobs.sum() + 0.3 * (entropy**2).sum()).backward()
        assert hidden.grad is not None and weight.grad is not None and bias.grad is not None
        return [logprobs, entropy, hidden.grad, weight.grad, bias.grad]

    full = run()
    monkeypatch.setattr(module, "_CHUNK_LOGITS", rows * 5)
    for part, expected in zip(run(), full, strict=True):
        torch.testing.assert_close(part, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("part", ["logprobs", "entropy", "both"])
@pytest.mark.parametrize("rows", [2, 6])
@pytest.mark.parametrize("temperature", [1.0, 0.7, MIXED], ids=["1", "0.7", "mixed"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_gradients_match_autograd(
    part: str,
    temperature: float | torch.Tensor,
    softcap: float | None,
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CHUNK_LOGITS", rows * 5)
    divisor = temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature
    torch.manual_seed(1)
    leaves = [torch.randn(shape, dtype=torch.float64) for shape in ((6, 4), (5, 4), (5,))]
    targets, weights = torch.arange(6) % 5, torch.randn(2, 6, dtype=torch.float64)
    weights *= torch.tensor([[part != "entropy"], [part != "logprobs"]])

    def gradients(written_out: bool) -> list[torch.Tensor]:
        hidden, weight, bias = (leaf.clone().requires_grad_() for leaf in leaves)
        if written_out:
            actual = token_logprobs(hidden, weight, bias, targets, temperature, True, softcap)
        else:
            logits = hidden @ weight.T + bias
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            log_p = torch.log_softmax(logits / divisor, -1)
            actual = (log_p[torch.arange(6), targets], -(log_p.exp() * log_p).sum(-1))
        # An output outside the loss has no gradient at all, not a gradient of zeros.
        terms = [(w * f).sum() for w, f in zip(weights, actual, strict=True) if bool(w.any())]
        torch.stack(terms).sum().backward()
        return [leaf.grad for leaf in (hidden, weight, bias) if leaf.grad is not None]

    for mine, autograds in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(mine, autograds, atol=1e-12, rtol=1e-12)


def test_equal_temperatures_per_position_give_the_bits_of_the_number() -> None:
    torch.manual_seed(2)
    hidden, weight, targets = torch.randn(6, 4), torch.randn(5, 4), torch.arange(6) % 5
    one = token_logprobs(hidden, weight, None, targets, 0.7, True)
    each = token_logprobs(hidden, weight, None, targets, torch.full((6,), 0.7, dtype=torch.float64), True)
    assert torch.equal(one[0], each[0]) and torch.equal(one[1], each[1])


def test_empty_input() -> None:
    hidden, weight = torch.zeros(0, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    logprobs, entropy = token_logprobs(hidden, weight, None, torch.zeros(0, dtype=torch.int64), 1.0, True)
    assert logprobs.shape == entropy.shape == (0,)
    (logprobs.sum() + entropy.sum()).backward()
    assert weight.grad is not None and not weight.grad.any()
