"""Admission of waiting entries: first come, first served, within the limits of rows, pages and prefill
tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kubealign_services.generation.torch_engine.kv_cache.page_manager import PageManager, pages_for
from kubealign_services.generation.torch_engine.kv_cache.page_pool import Pages
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS
from kubealign_services.generation.torch_engine.scheduler.wait_queue import QueueEntry


@dataclass(frozen=True)
class PrefillChunk:
    """Work of the next pass for an entry: computes the tokens `start` to `end` - 1 of its text, then
    `starting` samples draw a token.

    last_page: the last page of the text. own_last_pages: where that page is not full, a copy of it for each
    starting sample. The last sample takes the page itself where `gives_last_page` is set: no other sample
    needs the page, or no other page is left.
    """

    entry: QueueEntry
    start: int
    end: int
    starting: int = 0
    last_page: int = -1
    own_last_pages: Pages = field(default_factory=lambda: np.zeros(0, np.int32))
    gives_last_page: bool = False


def admit(
    queue: Iterable[QueueEntry], cache: PageManager, running: int, rows: int, prefill_tokens: int
) -> list[PrefillChunk]:
    """Return chunks for the oldest entries, in order; `prefill_tokens` limits the tokens of all chunks
    together.

    Entries get their pages, and their `computed_tokens` are advanced to the end of the chunks: the pass
    must follow. An entry older than all that have pages gets all pages that it needs, so that no entry
    starves; otherwise one page for each running sequence stays free, so that it is not preempted soon.

    Args:
        running: Number of running sequences.
        rows: Number of sequences that may still start.
    """
    chunks: list[PrefillChunk] = []
    for entry in queue:
        if not rows or (
            entry.pages is None and not (prefill_tokens and _allocate_entry(entry, cache, running))
        ):
            break
        assert entry.pages is not None
        start, end = entry.computed_tokens, min(len(entry.tokens), entry.computed_tokens + prefill_tokens)
        if start == end < len(entry.tokens):
            break
        prefill_tokens -= end - start
        if end > start:
            entry.computed_tokens = end
            cache.register(entry.tokens[:end], entry.pages)
        if end < len(entry.tokens):
            chunks.append(PrefillChunk(entry, start, end))
            break
        remaining = entry.remaining
        starting = max(min(rows, remaining, cache.available - running), 0 if running else 1)
        if starting or end > start:
            chunks.append(_complete_chunk(entry, cache, start, end, starting))
        rows -= starting
        running += starting
        if starting < remaining:
            break
    return chunks


def _allocate_entry(entry: QueueEntry, cache: PageManager, running: int) -> bool:
    """Allocate the pages of an entry's text, shared as far as its prefix is cached.

    Return False where too few are available.
    """
    cached = cache.find_prefix(entry.tokens)
    missing = pages_for(len(entry.tokens)) - len(cached)
    # One page is for the first token after the text; a sequence that is alone needs no margin.
    margin = running + 1 if cache.used else 0
    if missing + margin > cache.available - cache.count_unused(cached):
        return False
    cache.share(cached)
    entry.pages = np.concatenate((cached, cache.allocate(missing)))
    entry.computed_tokens = len(cached) * PAGE_TOKENS
    return True


def _complete_chunk(
    entry: QueueEntry, cache: PageManager, start: int, end: int, starting: int
) -> PrefillChunk:
    gives_last_page = starting == entry.remaining
    partial = len(entry.tokens) % PAGE_TOKENS != 0
    if starting and not gives_last_page and partial and not cache.available:
        # Nothing runs and no page is left: one sample takes the page, and the others recompute the text.
        gives_last_page = True
    copies = starting - gives_last_page if partial else 0
    assert entry.pages is not None
    return PrefillChunk(
        entry, start, end, starting, int(entry.pages[-1]), cache.allocate(copies), gives_last_page
    )
