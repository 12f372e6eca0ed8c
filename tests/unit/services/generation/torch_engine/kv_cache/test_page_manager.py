"""Pages without a model: users, unused pages, and pages found again."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kubealign_services.generation.torch_engine.kv_cache.page_manager import PageManager, pages_for
from kubealign_services.generation.torch_engine.kv_cache.page_pool import PagePool
from kubealign_services.generation.torch_engine.kv_cache.prefix_tree import PrefixTree


def text(*pages: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return full pages of one repeated token each."""
    return np.repeat(np.array(pages, np.int64), 16)


def numbers(*pages: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(pages, np.int32)


def test_tokens_take_whole_pages() -> None:
    assert [pages_for(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_free_pages_come_before_new_ones() -> None:
    pool = PagePool(4)
    assert pool.allocate(3).tolist() == [0, 1, 2]
    pool.share(numbers(1))
    assert pool.release(numbers(0, 1)).tolist() == [0]
    pool.return_pages([0])
    assert (pool.free, pool.top) == (1, 3)
    assert (pool.allocate(2).tolist(), pool.free, pool.top) == ([0, 3], 0, 4)
    with pytest.raises(ValueError, match="1 pages asked of 0 free ones and 0 new"):
        pool.allocate(1)
    assert pool.allocate(0).tolist() == []
    assert pool.reference_counts(numbers(0, 1, 2, 3)).tolist() == [1, 1, 1, 1]


def test_page_is_found_by_its_whole_prefix() -> None:
    table = PrefixTree()
    table.register(text(7, 8, 9), [3, 4, 5])
    assert table.find(text(7, 8, 9), 9) == [3, 4, 5]
    assert table.find(text(7, 8, 9), 2) == [3, 4]
    assert table.find(text(7, 9), 9) == [3]
    assert table.find(text(8, 9), 9) == []
    assert table.find(text(7, 8)[:31], 9) == [3]


def test_registered_text_keeps_its_page() -> None:
    table = PrefixTree()
    table.register(text(7, 8), [3, 4])
    table.register(text(7, 8, 9), [5, 6, 1])
    assert table.find(text(7, 8, 9), 9) == [3, 4, 1]
    assert [page in table for page in (3, 4, 1, 5, 6)] == [True, True, True, False, False]


def test_pages_after_a_removed_page_are_found_after_a_new_registration() -> None:
    table = PrefixTree()
    table.register(text(7, 8), [3, 4])
    table.remove(3)
    assert table.find(text(7, 8), 9) == []
    table.register(text(7), [5])
    assert table.find(text(7, 8), 9) == [5], "page 4 stands after another page, though of the same tokens"
    table.register(text(7, 8), [5, 4])
    assert table.find(text(7, 8), 9) == [5, 4]
    table.remove(4)
    assert table.find(text(7, 8), 9) == [5]
    assert len(table._pages) == 1, "nothing is left of where page 4 stood before"


def test_one_token_is_left_to_compute() -> None:
    cache = PageManager(8)
    pages = cache.allocate(2)
    cache.register(text(1, 2), pages)
    assert cache.find_prefix(text(1, 2)).tolist() == pages[:1].tolist()
    assert cache.find_prefix(text(1, 2, 3)[:33]).tolist() == pages.tolist()


def test_last_page_of_the_oldest_text_is_evicted_first() -> None:
    """Two texts of two pages in a cache of five."""
    cache = PageManager(5)
    old, young = cache.allocate(2), cache.allocate(2)
    cache.register(text(1, 2), old)
    cache.register(text(3, 4), young)
    cache.release(old)
    cache.release(young)
    assert (cache.used, cache.available) == (0, 5)
    cache.allocate(1)
    assert cache.find_prefix(text(1, 2, 9)).tolist() == old[:1].tolist()
    assert cache.find_prefix(text(3, 4, 9)).tolist() == young.tolist()
    cache.share(cache.find_prefix(text(3, 4, 9)))
    assert (cache.used, cache.available) == (3, 2)
    with pytest.raises(ValueError, match="3 pages asked, 2 available"):
        cache.allocate(3)


def test_unused_pages_are_evicted_before_storage_grows() -> None:
    """Four pages were in use at once; with half of that to spare, six are allocated before the first is
    evicted.
    """
    for spare, least, top in ((0.0, 0, 4), (0.5, 0, 6), (0.0, 7, 7), (9.0, 0, 8)):
        cache = PageManager(8, spare, least)
        for i in range(4):
            pages = cache.allocate(4 if i == 0 else 2)
            cache.register(text(*range(10 * i, 10 * i + len(pages))), pages)
            cache.release(pages)
        assert cache.storage_pages == top


def test_flush_keeps_used_pages_and_hides_them() -> None:
    cache = PageManager(4)
    used, resting = cache.allocate(2), cache.allocate(1)
    cache.register(text(1, 2), used)
    cache.register(text(3), resting)
    cache.release(resting)
    cache.flush()
    assert cache.epoch == 1
    assert (cache.used, cache.available) == (2, 2)
    assert cache.find_prefix(text(1, 2, 3)).tolist() == cache.find_prefix(text(3, 3)).tolist() == []
    cache.release(used)
    assert (cache.used, len(cache.allocate(4))) == (0, 4)


TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=5)


class Pages(RuleBasedStateMachine):
    """State machine: texts of few different pages come and go; a model tracks the contents of each page."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PageManager(9, spare_share=0.5, min_spare_pages=3)
        self.users: list[tuple[list[int], list[int]]] = []
        self.holds: dict[int, tuple[int, ...]] = {}

    @rule(content=TEXTS)
    def comes(self, content: list[int]) -> None:
        prefix = self.cache.find_prefix(np.append(text(*content), 0))
        for index, page in enumerate(prefix.tolist()):
            assert self.holds[page] == tuple(content[: index + 1])
        missing = len(content) - len(prefix)
        if missing > self.cache.available - self.cache.count_unused(prefix):
            return
        self.cache.share(prefix)
        pages = np.concatenate((prefix, self.cache.allocate(missing)))
        for index in range(len(prefix), len(content)):
            self.holds[int(pages[index])] = tuple(content[: index + 1])
        self.cache.register(text(*content), pages)
        self.users.append((content, pages.tolist()))

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.users) - 1))
        self.cache.release(np.array(self.users.pop(index)[1], np.int32))

    @rule()
    def flushed(self) -> None:
        self.cache.flush()

    @invariant()
    def each_page_is_somewhere(self) -> None:
        used = {page for _, pages in self.users for page in pages}
        assert self.cache.used == len(used)
        assert self.cache.available == 9 - len(used)
        assert self.cache.storage_pages <= 9
        for content, pages in self.users:
            assert [self.holds[page] for page in pages] == [
                tuple(content[: index + 1]) for index in range(len(content))
            ]


TestPages = Pages.TestCase
TestPages.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
