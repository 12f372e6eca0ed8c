"""Freed memory is kept while memory is available, and does not accumulate."""

import subprocess
import sys

import pytest

from kubealign_services.training.torch_backend.malloc_trim import keep_freed_memory

GIB = 1 << 30

# The freed blocks are below one that is still allocated, so that glibc cannot return them by itself.
_HOLES = """
import torch
from kubealign_services.training.torch_backend.malloc_trim import MallocTrimmer, _resident_bytes

trimmer = MallocTrimmer(torch.device("cpu"))
trimmer.maybe_trim()
before = _resident_bytes()
blocks = [torch.ones(8192) for _ in range(16384)]
del blocks[:-1]
holes = _resident_bytes()
trimmer.maybe_trim()
print(before, holes, _resident_bytes())
"""


def test_freed_memory_is_kept_while_memory_is_available() -> None:
    assert keep_freed_memory(resident=2 * GIB, least=2 * GIB, available=8 * GIB, total=16 * GIB)


def test_freed_memory_is_returned_when_less_than_half_is_available() -> None:
    assert not keep_freed_memory(resident=2 * GIB, least=2 * GIB, available=8 * GIB - 1, total=16 * GIB)


def test_freed_memory_is_returned_after_growth_by_more_than_a_quarter() -> None:
    # 1.25 times 4 GiB are 5.
    assert keep_freed_memory(resident=5 * GIB, least=4 * GIB, available=90 * GIB, total=100 * GIB)
    assert not keep_freed_memory(resident=5 * GIB + 1, least=4 * GIB, available=90 * GIB, total=100 * GIB)


@pytest.mark.slow
def test_a_grown_process_returns_memory() -> None:
    """16,384 blocks of 32 KiB are 512 MiB: more than a quarter of an interpreter with torch."""
    output = subprocess.run(
        [sys.executable, "-c", _HOLES], capture_output=True, text=True, timeout=120, check=True
    )
    before, holes, after = map(int, output.stdout.split())
    assert holes - before > 400 << 20
    assert after - before < 50 << 20
