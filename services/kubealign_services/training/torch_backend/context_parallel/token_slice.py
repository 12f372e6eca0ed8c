"""This rank's slice of a pack whose tokens the ranks of a context group share."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.packing.shared_prompts import SharedPack


@dataclass(frozen=True)
class TokenSlice:
    """A rank's slice of a pack that is padded to a multiple of the group's ranks.

    The padding is one more sequence at the end, to which no other sequence attends and which has no targets.

    Attributes:
        group: The ranks that share the pack.
        rows: The slice's indices in the padded pack.
        padding: Number of tokens of the padding.
        tokens, positions: int64 [1, H].
    """

    group: ContextGroup
    rows: slice
    padding: int
    tokens: Tensor
    positions: Tensor

    def to(self, device: torch.device) -> "TokenSlice":
        """Return the slice with its tensors on a device."""
        return replace(self, tokens=self.tokens.to(device), positions=self.positions.to(device))

    def contains(self, indices: Tensor) -> Tensor:
        """Return for each index of the pack whether the slice holds that token."""
        first, end = int(self.rows.start), int(self.rows.stop)
        return (indices >= first) & (indices < end)

    def select_counts(self, counts: Tensor) -> Tensor:
        """Return the slice's part of a number for each token of the pack [U], 0 for the padding."""
        return torch.nn.functional.pad(counts, (0, self.padding))[self.rows]

    def select_experts(self, routing: Tensor) -> Tensor:
        """Return the slice's part of recorded experts [layers, U, k]; the model routes the padding itself."""
        padded = torch.nn.functional.pad(routing, (0, 0, 0, self.padding), value=-1)
        return padded[:, self.rows].contiguous()

    def sum_columns(self, columns: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum each column over the group's ranks, in the order of the dict.

        Each rank's columns hold the values that it computed, and 0 elsewhere.
        """
        return {name: self.group.sum_column(column) for name, column in columns.items()}


def slice_tokens(tokens: Tensor, positions: Tensor, group: ContextGroup) -> TokenSlice:
    """Return this rank's slice of a pack: a contiguous run of equally many tokens for each rank.

    Args:
        tokens, positions: int64 [U] on the CPU.
    """
    padding = -len(tokens) % group.size
    length = (len(tokens) + padding) // group.size
    rows = slice(group.index * length, (group.index + 1) * length)
    tokens = torch.cat([tokens, tokens.new_zeros(padding)])
    positions = torch.cat([positions, torch.arange(padding)])
    return TokenSlice(group, rows, padding, tokens[rows][None], positions[rows][None])


def pad_layout(
    cu_seqlens: Tensor, shared: SharedPack | None, padding: int
) -> tuple[Tensor, SharedPack | None]:
    """Return the layout of a pack with one more sequence of `padding` tokens; unchanged for no padding.

    Args:
        cu_seqlens: int32 [S + 1], boundaries of the sequences.
        shared: Positions of the sequences' tokens in a pack that stores shared prompts once.
    """
    if not padding:
        return cu_seqlens, shared
    if shared is not None:
        extra = torch.arange(padding)
        shared = SharedPack(
            computed_indices=torch.cat([shared.computed_indices, len(shared.pack_indices) + extra]),
            pack_indices=torch.cat([shared.pack_indices, len(shared.computed_indices) + extra]),
        )
    return torch.cat([cu_seqlens, cu_seqlens[-1:] + padding]), shared
