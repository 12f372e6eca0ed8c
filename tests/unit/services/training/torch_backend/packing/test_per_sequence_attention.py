"""Per-sequence attention on views of the pack, compared with an explicit softmax(q k^T) v."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kubealign_services.training.torch_backend.packing import per_sequence_attention

OFFSETS = [0, 70, 71, 240, 273]
HEADS, SIZE = 3, 8


def drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(OFFSETS[-1], HEADS, SIZE, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    ]


def written_out(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    actual = []
    for start, end in pairwise(OFFSETS):
        q, k, v = (states[start:end].transpose(0, 1) for states in (query, key, value))
        scores = q @ k.transpose(1, 2) * scaling
        later = torch.ones(end - start, end - start).triu(1).bool()
        actual.append((scores.masked_fill(later, -math.inf).softmax(-1) @ v).transpose(0, 1))
    return torch.cat(actual)


@pytest.mark.parametrize("scaling", [None, 0.2])
@pytest.mark.parametrize("contiguous", [True, False])
def test_values_and_gradients_match_explicit_attention(scaling: float | None, contiguous: bool) -> None:
    ours, theirs = drawn(1), drawn(1)
    weights = torch.linspace(-1, 1, OFFSETS[-1] * HEADS * SIZE, dtype=torch.float64).view_as(ours[0])
    # Layout of a model's projections: heads first.
    seen = ours if contiguous else [each.transpose(0, 1).contiguous().transpose(0, 1) for each in ours]
    assert per_sequence_attention.can_run(seen[0], seen[1], seen[2], OFFSETS, 0.0)
    actual = per_sequence_attention.per_sequence_attention(seen[0], seen[1], seen[2], OFFSETS, scaling)
    expected = written_out(theirs[0], theirs[1], theirs[2], SIZE**-0.5 if scaling is None else scaling)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    (actual * weights).sum().backward()
    (expected * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=1e-12)


def test_unsupported_inputs_are_left_to_padded_blocks() -> None:
    query, key, value = drawn(2)
    can_run = per_sequence_attention.can_run
    assert can_run(query, key, value, OFFSETS, 0.0)
    # Dropout; fewer heads of keys; 273 tokens in 9 sequences: 30 each; a pack that holds prompts once.
    assert not can_run(query, key, value, OFFSETS, 0.1)
    assert not can_run(query, key[:, :1], value[:, :1], OFFSETS, 0.0)
    assert not can_run(query, key, value, [*range(0, 270, 34), 272, 273], 0.0)
    assert not can_run(query, key, value, [*OFFSETS, 280], 0.0)
