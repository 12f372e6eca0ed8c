"""Builds one forward pass from the running rows and the prefill chunks."""

import numpy as np

from kubealign_services.generation.torch_engine.scheduler.admission import PrefillChunk
from kubealign_services.generation.torch_engine.ragged_batch import RaggedBatch
from kubealign_services.generation.torch_engine.scheduler.running_batch import RunningBatch


def build_batch(rows: RunningBatch, chunks: list[PrefillChunk]) -> RaggedBatch | None:
    """Build the batch of a pass, or None where nothing is to be computed.

    Logits are requested after each running row, then after each text that this pass completes.
    """
    chunks = [part for part in chunks if part.end > part.start]
    running = len(rows)
    tokens, positions, tables = rows.newest_tokens()
    ones = np.ones(running, np.int64)
    row_indices = np.arange(running)
    if not chunks:
        return RaggedBatch(tokens, positions, ones, running, tables, row_indices) if running else None
    lengths = np.array([part.end - part.start for part in chunks], np.int64)
    is_complete = np.array([part.end == len(part.entry.tokens) for part in chunks])
    ends = running + lengths.cumsum() - 1
    return RaggedBatch(
        tokens=np.concatenate((tokens, *(part.entry.tokens[part.start : part.end] for part in chunks))),
        positions=np.concatenate((positions, *(np.arange(part.start, part.end) for part in chunks))),
        lengths=np.concatenate((ones, lengths)),
        decoding_count=running,
        page_tables=_stack_page_tables(tables, chunks),
        logit_indices=np.concatenate((row_indices, ends[is_complete])),
    )


def _stack_page_tables(
    running: np.ndarray[tuple[int, ...], np.dtype[np.int32]], parts: list[PrefillChunk]
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Append the chunks' page tables to those of the running rows."""
    pages = [part.entry.pages for part in parts]
    most = max(running.shape[1], *(0 if each is None else len(each) for each in pages))
    tables = np.zeros((len(running) + len(parts), most), np.int32)
    tables[: len(running), : running.shape[1]] = running
    for row, each in enumerate(pages, len(running)):
        if each is not None:
            tables[row, : len(each)] = each
    return tables
