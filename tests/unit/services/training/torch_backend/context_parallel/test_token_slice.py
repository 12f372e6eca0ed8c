"""Slices of a pack for the ranks of a context group."""

from typing import Any

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.context_parallel.token_slice import pad_layout, slice_tokens
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens
from kubealign_services.training.torch_backend.packing.shared_prompts import share_prompts

CPU = torch.device("cpu")
NO_PROCESSES: Any = None


def groups(size: int) -> list[ContextGroup]:
    """Return the group of each rank; slices need no communication."""
    return [ContextGroup(size, index, NO_PROCESSES) for index in range(size)]


def make_batch() -> Batch:
    """Return 13 tokens: two sequences with a common prompt of three tokens, and one with another prompt."""
    batch = pack([[1, 2, 3, 9, 8], [1, 2, 3, 7], [5, 6, 4, 3]], ["a", "b", "c"])
    mask = [0, 0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1]
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    return batch


@pytest.mark.parametrize("size", [2, 3, 4, 20])
def test_slices_are_equal_parts_of_the_padded_pack(size: int) -> None:
    tokens, positions = torch.arange(1, 14), torch.arange(13)
    parts = [slice_tokens(tokens, positions, group) for group in groups(size)]
    padding = -13 % size
    assert {part.tokens.shape for part in parts} == {(1, (13 + padding) // size)}
    assert torch.cat([part.tokens for part in parts], 1)[0].tolist() == [*range(1, 14), *[0] * padding]
    padded = torch.cat([part.positions for part in parts], 1)[0].tolist()
    assert padded == [*range(13), *range(padding)]
    for part in parts:
        inside = part.contains(torch.arange(13 + padding)).nonzero()[:, 0].tolist()
        assert inside == list(range(13 + padding))[part.rows]


def test_padding_is_a_sequence_of_its_own() -> None:
    batch = make_batch()
    shared = share_prompts(batch)
    seams, layout = pad_layout(batch.cu_seqlens, shared, 3)
    assert seams.tolist() == [0, 5, 9, 13, 16] and seams.dtype == torch.int32
    assert shared is not None and layout is not None
    # Ten tokens are computed; the padding comes after them.
    assert layout.computed_indices.tolist() == [*shared.computed_indices.tolist(), 13, 14, 15]
    assert layout.pack_indices.tolist() == [*shared.pack_indices.tolist(), 10, 11, 12]
    assert pad_layout(batch.cu_seqlens, shared, 0) == (batch.cu_seqlens, shared)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("shares_prompts", [False, True])
def test_each_output_is_computed_by_the_rank_with_its_state(size: int, shares_prompts: bool) -> None:
    """A log-probability depends on the state of the token before it, in another slice or not."""
    batch = make_batch()
    batch.token_columns["candidates"] = torch.arange(26).view(13, 2)
    unshared = PackedTokens.from_batch(batch, CPU, shares_prompts)
    parts = [
        PackedTokens.from_batch(batch, CPU, shares_prompts, context_group=group) for group in groups(size)
    ]
    for name in ("target_indices", "predicted_indices"):
        every = torch.cat([getattr(part, name) for part in parts]).sort().values
        assert torch.equal(every, getattr(unshared, name))
    own = [part.own_indices for part in parts if part.own_indices is not None]
    assert torch.cat(own).sort().values.tolist() == list(range(13))
    for part in parts:
        assert part.token_slice is not None and part.own_indices is not None and part.candidates is not None
        local = part.token_slice.tokens[0]
        predecessors = part.predecessor_indices(part.target_indices)
        assert torch.equal(local[predecessors], batch.tokens[part.target_indices - 1].long())
        assert torch.equal(local[part.state_indices(part.own_indices)], batch.tokens[part.own_indices].long())
        assert torch.equal(part.targets, batch.tokens[part.target_indices].long())
        assert torch.equal(part.candidates[:, 0], 2 * part.target_indices)
        assert part.length == 13
