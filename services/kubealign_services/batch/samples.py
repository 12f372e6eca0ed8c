"""Samples of several sequences, and the view of a batch with one sequence for each sample.

An episode may have several sequences, which follow one another in the batch and share the column `sample`. A
batch without the column has one sequence for each sample. Rewards, groups and advantages are those of
samples; passes of the model and token columns are those of sequences.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kubealign_services.batch.packed import Batch, prompt_lengths

#: Column int64 [S]: number of the sample of each sequence; consecutive samples have different ones.
SAMPLE = "sample"
#: Column uint8 [S]: nonzero where a sequence did not end within its limit.
TRUNCATED = "truncated"
#: Column int64 [N] of a merged batch: tokens of the longest response of each sample, as the sampling limit
#: counts them.
LONGEST_RESPONSE = "longest_response"


def name_sequences(sample_id: str, count: int) -> list[str]:
    """Return the names of the sequences of a sample: its own if it has one sequence."""
    return [sample_id] if count == 1 else [f"{sample_id}/{number}" for number in range(count)]


def sample_name(sequence_id: str) -> str:
    """Return the name of the sample of a sequence, as `make_sample_id` has it."""
    prompt, mark, rest = sequence_id.rpartition("#")
    return prompt + mark + rest.partition("/")[0]


def mark_samples(parts: Sequence[Batch]) -> None:
    """Add the column `sample` to the sequences of consecutive samples, if a sample has several."""
    if any(len(part) > 1 for part in parts):
        for index, part in enumerate(parts):
            part.sequence_columns[SAMPLE] = torch.tensor([index] * len(part))


def has_several_sequences(batch: Batch) -> bool:
    """Return True if samples of the batch may have several sequences."""
    return SAMPLE in batch.sequence_columns


def count_samples(batch: Batch) -> int:
    """Return the number of samples."""
    return len(last_sequences(batch))


def last_sequences(batch: Batch) -> list[int]:
    """Return the index of the last sequence of each sample."""
    if not has_several_sequences(batch):
        return list(range(len(batch)))
    samples = batch.sequence(SAMPLE)
    is_last = torch.ones(len(batch), dtype=torch.bool)
    is_last[:-1] = samples[1:] != samples[:-1]
    return is_last.nonzero().squeeze(1).tolist()


def split_samples(batch: Batch) -> list[list[int]]:
    """Return the indices of the sequences of each sample."""
    ends = [index + 1 for index in last_sequences(batch)]
    return [list(range(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def merge_samples(batch: Batch) -> Batch:
    """Return a view of the batch with one sequence for each sample: N sequences of the same T tokens.

    The tensors of the tokens and their columns are shared, since the sequences of a sample follow one
    another: a column that is added to one of the two batches fits the other. A sample has the names and
    sequence columns of its last sequence, and the column `longest_response`. A batch with one sequence for
    each sample is returned itself.

    The view serves the arithmetic of rewards and advantages, where a response is its tokens with a loss in
    order. It is no input of a model: tokens of one sequence do not follow those of the one before.
    """
    if not has_several_sequences(batch):
        return batch
    last = torch.tensor(last_sequences(batch))
    offsets = torch.zeros(len(last) + 1, dtype=torch.int32)
    offsets[1:] = batch.cu_seqlens[last + 1]
    columns = {name: column[last] for name, column in batch.sequence_columns.items() if name != SAMPLE}
    lengths = batch.lengths - prompt_lengths(batch)
    longest = torch.zeros(len(last), dtype=torch.int64)
    columns[LONGEST_RESPONSE] = longest.scatter_reduce(0, _sample_index(batch), lengths, "amax")
    return replace(
        batch,
        cu_seqlens=offsets,
        sample_ids=[sample_name(batch.sample_ids[index]) for index in last.tolist()],
        token_columns=dict(batch.token_columns),
        sequence_columns=columns,
        scalars=dict(batch.scalars),
    )


def copy_columns(merged: Batch, batch: Batch) -> None:
    """Copy the columns and scalars of a merged batch to the batch that it is a view of.

    All sequences of a sample get its columns, but each keeps its own column `truncated`.
    """
    if merged is batch:
        return
    batch.scalars |= merged.scalars
    batch.token_columns |= merged.token_columns
    index = _sample_index(batch)
    for name, column in merged.sequence_columns.items():
        if name not in (LONGEST_RESPONSE, TRUNCATED):
            batch.sequence_columns[name] = column[index]


def _sample_index(batch: Batch) -> Tensor:
    """Return the position of the sample of each sequence, from 0, int64 [S]."""
    index: Tensor = torch.unique_consecutive(batch.sequence(SAMPLE), return_inverse=True)[1]
    return index
