"""How many threads a pass has where other processes want the cores.

A pass over few tokens reads the weights and computes little. One core reads them nearly as fast as two that
have to wake each other for every product: of two, the second is worth more to whoever else computes
(docs/training-backends.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: Tokens of a pass that has one thread.
FEW = 16


@contextmanager
def threads_for(tokens: int) -> Iterator[None]:
    """One thread within the block for few tokens, on the thread that calls; all that it has for more."""
    threads = torch.get_num_threads()
    if tokens > FEW or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
