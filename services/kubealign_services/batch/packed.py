"""The packed batch: sequences concatenated in one dimension, with named columns.

T is the number of tokens, S the number of sequences. A per-token column has one entry for every token; a
value that belongs to a prediction is stored at the predicted token (so the first token of a sequence holds
0).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Batch:
    """Packed sequences.

    Attributes:
        tokens: int32 [T].
        cu_seqlens: int32 [S + 1], offsets into tokens, from 0 to T, strictly increasing.
        sample_ids: S names.
        token_columns: Name -> [T], or [T, K] or [T, L, K], where each token has K or L x K numbers.
        sequence_columns: Name -> [S] or [S, K].
        scalars: Name -> number.

    Raises ValueError when shapes do not agree.
    """

    tokens: Tensor
    cu_seqlens: Tensor
    sample_ids: list[str]
    token_columns: dict[str, Tensor] = field(default_factory=dict)
    sequence_columns: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        offsets = self.cu_seqlens
        if self.tokens.dim() != 1 or offsets.dim() != 1 or len(offsets) < 1:
            raise ValueError(
                f"tokens and cu_seqlens have one dimension, not {self.tokens.shape} and {offsets.shape}"
            )
        if int(offsets[0]) != 0 or int(offsets[-1]) != len(self.tokens):
            raise ValueError(
                f"cu_seqlens runs from 0 to {len(self.tokens)}, not {int(offsets[0])} to {int(offsets[-1])}"
            )
        if len(offsets) > 1 and not bool((offsets[1:] > offsets[:-1]).all()):
            raise ValueError("every sequence has at least one token")
        if len(self.sample_ids) != len(self):
            raise ValueError(f"{len(self.sample_ids)} sample ids for {len(self)} sequences")
        for name, column in self.token_columns.items():
            if column.dim() not in (1, 2, 3) or len(column) != len(self.tokens):
                raise ValueError(
                    f"token column {name} has shape {tuple(column.shape)}, not ({len(self.tokens)}, ...)"
                )
        for name, column in self.sequence_columns.items():
            if column.dim() not in (1, 2) or len(column) != len(self):
                raise ValueError(
                    f"sequence column {name} has shape {tuple(column.shape)}, not ({len(self)}, ...)"
                )

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.cu_seqlens) - 1

    @property
    def lengths(self) -> Tensor:
        """int64 [S]: number of tokens of each sequence."""
        return (self.cu_seqlens[1:] - self.cu_seqlens[:-1]).long()

    @property
    def sequence_of_token(self) -> Tensor:
        """int64 [T]: index of the sequence that each token belongs to."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    @property
    def positions(self) -> Tensor:
        """int64 [T]: position of each token in its sequence, from 0."""
        return torch.arange(len(self.tokens)) - self.cu_seqlens[:-1].long()[self.sequence_of_token]

    def token(self, name: str) -> Tensor:
        """Return the per-token column. Raises KeyError, listing the existing columns."""
        if name not in self.token_columns:
            raise KeyError(f"no token column {name}; there are {sorted(self.token_columns)}")
        return self.token_columns[name]

    def sequence(self, name: str) -> Tensor:
        """Return the per-sequence column. Raises KeyError, listing the existing columns."""
        if name not in self.sequence_columns:
            raise KeyError(f"no sequence column {name}; there are {sorted(self.sequence_columns)}")
        return self.sequence_columns[name]

    def select(self, sequences: Sequence[int]) -> "Batch":
        """Return the sequences with these indices, in this order, with their columns and all scalars."""
        indices = torch.as_tensor(list(sequences), dtype=torch.int64)
        lengths = self.lengths[indices]
        starts = self.cu_seqlens[:-1].long()[indices]
        offsets = torch.zeros(len(indices) + 1, dtype=torch.int32)
        offsets[1:] = lengths.cumsum(0)
        shifts = torch.repeat_interleave(starts - offsets[:-1].long(), lengths)
        index = torch.arange(int(offsets[-1])) + shifts
        return Batch(
            tokens=self.tokens[index],
            cu_seqlens=offsets,
            sample_ids=[self.sample_ids[i] for i in indices.tolist()],
            token_columns={name: column[index] for name, column in self.token_columns.items()},
            sequence_columns={name: column[indices] for name, column in self.sequence_columns.items()},
            scalars=dict(self.scalars),
        )


def concatenate(batches: Iterable[Batch]) -> Batch:
    """Concatenate batches in order.

    All batches have the same columns; the scalars are those of the first batch. Raises ValueError for an
    empty list or different columns.
    """
    parts = list(batches)
    if not parts:
        raise ValueError("there is no batch to concatenate")
    first = parts[0]
    for part in parts:
        if (
            part.token_columns.keys() != first.token_columns.keys()
            or part.sequence_columns.keys() != first.sequence_columns.keys()
        ):
            raise ValueError(
                f"batches with different columns: {sorted(first.token_columns | first.sequence_columns)} "
                f"and {sorted(part.token_columns | part.sequence_columns)}"
            )
    lengths = torch.cat([part.lengths for part in parts])
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    offsets[1:] = lengths.cumsum(0)
    return Batch(
        tokens=torch.cat([part.tokens for part in parts]),
        cu_seqlens=offsets,
        sample_ids=[sample for part in parts for sample in part.sample_ids],
        token_columns={
            name: torch.cat([part.token_columns[name] for part in parts]) for name in first.token_columns
        },
        sequence_columns={
            name: torch.cat([part.sequence_columns[name] for part in parts])
            for name in first.sequence_columns
        },
        scalars=dict(first.scalars),
    )


def pack(sequences: Sequence[Sequence[int]], sample_ids: Sequence[str]) -> Batch:
    """Pack token lists into a batch that has no per-token and per-sequence tensors (columns) yet."""
    offsets = torch.zeros(len(sequences) + 1, dtype=torch.int32)
    offsets[1:] = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.int32).cumsum(0)
    return Batch(
        tokens=torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int32),
        cu_seqlens=offsets,
        sample_ids=list(sample_ids),
    )


def prompt_lengths(batch: Batch) -> Tensor:
    """Return the number of tokens before the first response token of each sequence, int64 [S].

    Reads the token column loss_mask. A sequence without a response token is all prompt.
    """
    mask = batch.token("loss_mask").bool()
    lengths = batch.cu_seqlens.long().diff()
    return lengths.scatter_reduce(0, batch.sequence_of_token[mask], batch.positions[mask], "amin")


def sequence_sums(values: Tensor, batch: Batch) -> Tensor:
    """Sum per-token values [T] or [T, K] over each sequence.

    Returns [S] or [S, K] in the dtype and on the device of values.
    """
    total = torch.zeros(len(batch), *values.shape[1:], dtype=values.dtype, device=values.device)
    return total.index_add(0, batch.sequence_of_token.to(values.device), values)
