"""Who enters: first come, first served, as far as rows, pages and the tokens of a pass go."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kubealign_services.generation.torch_engine.line import Entry
from kubealign_services.generation.torch_engine.page_cache import PageCache, pages_for
from kubealign_services.generation.torch_engine.pages import Pages
from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS


@dataclass(frozen=True)
class Part:
    """What the next pass does for an entry: it computes the tokens `start` to `end` - 1 of its text, and then
    `entering` of its samples draw a token.

    shared_last: the last page of the text. own: where that is not full, a page for each of them in its place.
    The last of them takes that one itself, where the entry `gives` it: nobody else needs it, or there is no
    other page.
    """

    entry: Entry
    start: int
    end: int
    entering: int = 0
    shared_last: int = -1
    own: Pages = field(default_factory=lambda: np.zeros(0, np.int32))
    gives: bool = False


def admit(
    line: Iterable[Entry], cache: PageCache, running: int, rows: int, prefill_tokens: int
) -> list[Part]:
    """Parts for the oldest entries, in order; `prefill_tokens` bounds the tokens of all together.

    running: sequences that run; rows: how many more may. Entries get their pages, and are `done` as far as
    the parts go: the pass must follow. Whoever is older than all that hold pages gets what it needs, so that
    nobody waits for ever; else some pages stay free, one for each that runs, so that it is not stopped soon.
    """
    parts: list[Part] = []
    for entry in line:
        if not rows or (entry.pages is None and not (prefill_tokens and _begin(entry, cache, running))):
            break
        assert entry.pages is not None
        start, end = entry.done, min(len(entry.tokens), entry.done + prefill_tokens)
        if start == end < len(entry.tokens):
            break
        prefill_tokens -= end - start
        if end > start:
            entry.done = end
            cache.know(entry.tokens[:end], entry.pages)
        if end < len(entry.tokens):
            parts.append(Part(entry, start, end))
            break
        remaining = entry.remaining
        entering = max(min(rows, remaining, cache.available - running), 0 if running else 1)
        if entering or end > start:
            parts.append(_whole(entry, cache, start, end, entering))
        rows -= entering
        running += entering
        if entering < remaining:
            break
    return parts


def _begin(entry: Entry, cache: PageCache, running: int) -> bool:
    """Give it the pages of its text, as far as they are known shared, if there is room."""
    known = cache.find(entry.tokens)
    missing = pages_for(len(entry.tokens)) - len(known)
    # With one for the first token after it; alone it needs no more than it needs.
    margin = running + 1 if cache.used else 0
    if missing + margin > cache.available - cache.resting(known):
        return False
    cache.share(known)
    entry.pages = np.concatenate((known, cache.take(missing)))
    entry.done = len(known) * PAGE_TOKENS
    return True


def _whole(entry: Entry, cache: PageCache, start: int, end: int, entering: int) -> Part:
    gives = entering == entry.remaining
    partial = len(entry.tokens) % PAGE_TOKENS != 0
    if entering and not gives and partial and not cache.available:
        # Nobody runs, and no page is left: the one sample takes the page, and the text is computed again.
        gives = True
    copies = entering - gives if partial else 0
    assert entry.pages is not None
    return Part(entry, start, end, entering, int(entry.pages[-1]), cache.take(copies), gives)
