"""Admission without a model: limits of rows, pages and prefill tokens."""

import numpy as np
import pytest

from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.kv_cache.page_manager import PageManager
from kubealign_services.generation.torch_engine.scheduler.admission import PrefillChunk, admit
from kubealign_services.generation.torch_engine.scheduler.wait_queue import (
    QueueEntry,
    RequestGroup,
    WaitQueue,
)

ROOMY = 1000


def entry(name: str, prompt: int, samples: int, arrival: int, first_token: int = 0) -> QueueEntry:
    tokens = tuple(range(first_token, first_token + prompt))
    request = GenerationRequest(name, tokens, tuple(range(samples)), SamplingParameters(max_tokens=4))
    return QueueEntry(RequestGroup(request, arrival, frozenset()), np.array(tokens), 0, samples)


class Site:
    """A wait queue, and the part of the scheduler that applies chunks to it."""

    def __init__(self, *entries: QueueEntry, limit: int = ROOMY) -> None:
        self.cache = PageManager(limit)
        self.queue = WaitQueue()
        self.running = 0
        for each in entries:
            self.queue.insert(each)

    def admit(self, rows: int, tokens: int) -> list[PrefillChunk]:
        parts = admit(self.queue, self.cache, self.running, rows, tokens)
        for part in parts:
            self.running += part.starting
            part.entry.first += part.starting
            if part.gives_last_page:
                part.entry.pages = None
        self.queue.remove([part.entry for part in parts if not part.entry.remaining])
        return parts

    def admitted(self, rows: int, tokens: int) -> list[tuple[str, int, int, int]]:
        """Return (name, first and last computed token, samples that start)."""
        parts = self.admit(rows, tokens)
        return [(p.entry.group.request.request_id, p.start, p.end, p.starting) for p in parts]


def test_first_come_first_served_up_to_the_rows() -> None:
    site = Site(entry("a", 3, 2, 0), entry("b", 3, 2, 1, 50), entry("c", 3, 1, 2, 99))
    assert site.admitted(3, 100) == [("a", 0, 3, 2), ("b", 0, 3, 1)]
    assert site.queue.sample_count() == 2
    assert site.admitted(0, 100) == []
    assert site.admitted(9, 100) == [("b", 3, 3, 1), ("c", 0, 3, 1)]
    assert (site.queue.sample_count(), site.admitted(9, 100)) == (0, [])


def test_long_prompts_are_chunked_and_not_overtaken() -> None:
    """Nine tokens per pass: four, and five of the next; then nine of its other twelve, then three."""
    site = Site(entry("a", 4, 1, 0), entry("long", 17, 5, 1, 50), entry("c", 4, 1, 2, 99))
    assert site.admitted(9, 9) == [("a", 0, 4, 1), ("long", 0, 5, 0)]
    assert site.admitted(9, 9) == [("long", 5, 14, 0)]
    assert site.admitted(9, 9) == [("long", 14, 17, 5), ("c", 0, 4, 1)]


def test_a_computed_prompt_costs_no_tokens() -> None:
    site = Site(entry("a", 9, 3, 0), entry("b", 9, 1, 1, 50))
    assert site.admitted(1, 9) == [("a", 0, 9, 1)]
    assert site.admitted(9, 9) == [("a", 9, 9, 2), ("b", 0, 9, 1)]


def test_each_sample_but_the_last_copies_the_last_page() -> None:
    """20 tokens: a full page that all share, and one with four tokens of which each sample needs a copy."""
    site = Site(entry("a", 20, 4, 0))
    (first,) = site.admit(2, 100)
    assert (len(first.own_last_pages), first.gives_last_page, site.cache.used) == (2, False, 4)
    assert first.last_page == 1
    (second,) = site.admit(9, 100)
    assert (len(second.own_last_pages), second.gives_last_page, second.last_page, site.cache.used) == (
        1,
        True,
        1,
        5,
    )


def test_full_pages_need_no_copy() -> None:
    (part,) = Site(entry("a", 32, 4, 0)).admit(9, 100)
    assert (len(part.own_last_pages), part.gives_last_page) == (0, True)


def test_shared_prefix_is_computed_once() -> None:
    """40 tokens, of which b shares 35: two full pages, shared within the same pass. c shares exactly full
    pages, but its last token must still be computed.
    """
    b = entry("b", 40, 1, 1)
    b.tokens[35:] = 7
    site = Site(entry("a", 40, 1, 0), b, entry("c", 32, 1, 2))
    assert site.admitted(9, 100) == [("a", 0, 40, 1), ("b", 32, 40, 1), ("c", 16, 32, 1)]
    assert site.cache.used == 3 + 1 + 1


def test_uncomputed_prefix_is_not_shared() -> None:
    """The first pass computes 20 of a's 40 tokens; b, with the same text, starts after a is done."""
    site = Site(entry("a", 40, 1, 0), entry("b", 40, 1, 1))
    assert site.admitted(9, 20) == [("a", 0, 20, 0)]
    assert site.admitted(9, 30) == [("a", 20, 40, 1), ("b", 32, 40, 1)]


def test_admission_leaves_a_page_for_each_running_sequence() -> None:
    """Two sequences run. Of six pages they have two; b needs one, one for its first token, and two stay free
    for the others. With a cache of five it waits.
    """
    for limit, enters in ((6, True), (5, False)):
        site = Site(entry("a", 16, 1, 0), entry("a2", 16, 1, 1, 50), limit=limit)
        assert len(site.admit(9, 100)) == 2
        site.queue.insert(entry("b", 16, 1, 2, 99))
        assert bool(site.admitted(9, 100)) is enters


def test_reused_unused_pages_do_not_count_as_free() -> None:
    """One sequence runs, with one page. b reuses two of three unused pages, needs another, one for its first
    token, and one stays free: with its own two, and the one in use, six in all.
    """
    for limit, enters in ((6, True), (5, False)):
        b = entry("b", 40, 1, 1)
        site = Site(entry("a", 16, 1, 0, 99), limit=limit)
        site.admit(9, 100)
        rested = site.cache.allocate(2)
        site.cache.register(b.tokens[:32], rested)
        site.cache.release(rested)
        site.queue.insert(b)
        assert site.admitted(9, 100) == ([("b", 32, 40, 1)] if enters else [])


def test_first_entry_may_take_all_pages() -> None:
    """Three pages just suffice; a cache of two never would, and the request is refused earlier."""
    site = Site(entry("a", 48, 1, 0), limit=3)
    assert site.admitted(9, 100) == [("a", 0, 48, 1)]


def test_samples_start_as_far_as_pages_are_available() -> None:
    """20 tokens in two of five pages; three samples start with a copied page each, the others wait with the
    prompt's.
    """
    site = Site(entry("a", 20, 9, 0), limit=5)
    (part,) = site.admit(9, 100)
    assert (part.starting, len(part.own_last_pages), part.gives_last_page, site.cache.available) == (
        3,
        3,
        False,
        0,
    )
    assert site.admit(6, 100) == []


def test_without_a_free_page_one_sample_takes_the_prompts_page() -> None:
    """Two pages in all: each of three samples uses them alone, and the prompt is recomputed for the next; its
    full page may still be cached.
    """
    site = Site(entry("a", 20, 3, 0), limit=2)
    for first, computed in ((0, 0), (1, 16), (2, 16)):
        (part,) = site.admit(9, 100)
        assert (part.start, part.end, part.starting, len(part.own_last_pages), part.gives_last_page) == (
            computed,
            20,
            1,
            0,
            True,
        )
        assert part.entry.first == first + 1
        site.running = 0
        site.cache.release(np.array([0, 1], np.int32))


def test_oldest_entry_is_first_regardless_of_insertion() -> None:
    site = Site(entry("c", 1, 1, 2), entry("a", 1, 1, 0), entry("b", 1, 1, 1))
    assert [each.group.request.request_id for each in site.queue] == ["a", "b", "c"]
    assert [each.group.request.request_id for each in site.queue.for_request("b")] == ["b"]
    site.queue.remove(site.queue.for_request("b"))
    assert site.queue.sample_count() == 2


@pytest.mark.parametrize("rows", [1, 5])
def test_prompt_chunk_needs_a_free_row(rows: int) -> None:
    site = Site(entry("a", 4, 5, 0), entry("b", 4, 1, 1, 50))
    assert len(site.admit(rows, 100)) == 1
