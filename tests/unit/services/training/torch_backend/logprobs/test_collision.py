"""Sums of squared probabilities from hidden states, in chunks."""

import pytest
import torch

from kubealign_services.training.torch_backend.logprobs import chunked_logits
from kubealign_services.training.torch_backend.logprobs.collision import collision_probabilities


def test_by_hand() -> None:
    """Probabilities 1/6, 2/6, 3/6; at temperature 1/2 they are 1, 4, 9 of 14."""
    weight = torch.tensor([[1.0], [2.0], [3.0]]).double().log()
    hidden = torch.ones(2, 1, dtype=torch.float64)
    temperature = torch.tensor([1.0, 0.5], dtype=torch.float64)
    actual = collision_probabilities(hidden, weight, None, temperature)
    assert actual.tolist() == pytest.approx([14 / 36, 98 / 196])


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_equals_torch_s_softmax_whatever_the_chunk(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_logits, "_CHUNK_LOGITS", rows * 5)
    torch.manual_seed(0)
    hidden = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    weight, bias = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    actual = collision_probabilities(hidden, weight, bias, 0.8)
    expected = ((hidden @ weight.T + bias) / 0.8).softmax(-1).square().sum(-1).detach()
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert not actual.requires_grad
    capped = collision_probabilities(hidden, weight, bias, 0.8, 1.5)
    logits = 1.5 * ((hidden @ weight.T + bias) / 1.5).tanh()
    torch.testing.assert_close(capped, (logits / 0.8).softmax(-1).square().sum(-1).detach())
    assert collision_probabilities(hidden[:0], weight, None, 1.0).shape == (0,)
