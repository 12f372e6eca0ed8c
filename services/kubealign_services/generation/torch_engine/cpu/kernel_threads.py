"""Threads of a CPU pass: a pool for compiled kernels, and a limit for passes that share their cores."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

#: Largest number of tokens of a pass with one thread.
SMALL_BATCH_TOKENS = 16
# Numbers that a kernel reads per thread before another thread pays off: about a tenth of a millisecond.
NUMBERS_PER_THREAD = 1 << 18


class KernelThreads:
    """A thread pool that each process creates when it first needs it, because a fork does not inherit
    threads.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def run(self, kernel: Callable[..., None], parts: Sequence[tuple[Any, ...]]) -> None:
        """Run the kernel with each of the argument lists in parallel; the last on the calling thread."""
        pool = self._get_pool() if len(parts) > 1 else None
        futures = [pool.submit(kernel, *part) for part in parts[:-1]] if pool is not None else []
        try:
            kernel(*parts[-1])
        finally:
            for future in futures:
                future.result()

    def _get_pool(self) -> ThreadPoolExecutor:
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(thread_name_prefix="kernel")
            self._process = os.getpid()
        return self._pool


KERNEL_THREADS = KernelThreads()


def split_rows(rows: int, numbers: int) -> list[tuple[int, int]]:
    """Return the first and the last row of each thread, for rows of equal cost that read `numbers` numbers in
    all.
    """
    threads = min(_thread_count(numbers), max(1, rows))
    bounds = [rows * index // threads for index in range(threads + 1)]
    return list(pairwise(bounds))


def split_work(work: NDArray[np.int64], key_heads: int) -> list[tuple[int, int, int, int]]:
    """Return the first and the last row and key head of each thread, for rows that read `work` [n] numbers
    each. Few rows are divided by their heads.
    """
    rows, total = len(work), np.cumsum(work)
    threads = _thread_count(int(total[-1]))
    if rows < 2 * threads:
        threads = min(threads, key_heads)
        bounds = [key_heads * each // threads for each in range(threads + 1)]
        return [(0, rows, low, high) for low, high in pairwise(bounds)]
    cuts = np.searchsorted(total, total[-1] * np.arange(1, threads) / threads).tolist()
    bounds = [0, *(cut + 1 for cut in cuts), rows]
    return [(first, last, 0, key_heads) for first, last in pairwise(bounds) if first < last]


def _thread_count(numbers: int) -> int:
    return max(1, min(torch.get_num_threads(), numbers // NUMBERS_PER_THREAD))


@contextmanager
def limit_threads(tokens: int) -> Iterator[None]:
    """Compute with one thread within the block for few tokens, with all threads for more.

    A pass over few tokens reads the weights and computes little. One core reads them nearly as fast as two,
    which must wake each other for every product: the second core is worth more to the other processes
    (docs/training-backends.md).
    """
    threads = torch.get_num_threads()
    if tokens > SMALL_BATCH_TOKENS or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
