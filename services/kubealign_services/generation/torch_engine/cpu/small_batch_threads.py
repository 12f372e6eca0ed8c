"""Thread count of a pass whose cores are shared with other processes.

A pass over few tokens reads the weights and computes little. One core reads them nearly as fast as two,
which must wake each other for every product: the second core is worth more to the other processes
(docs/training-backends.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Largest number of tokens of a pass with one thread.
SMALL_BATCH_TOKENS = 16


@contextmanager
def limit_threads(tokens: int) -> Iterator[None]:
    """Compute with one thread within the block for few tokens, with all threads of the calling thread for
    more.
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
