"""Full disks: only a disk that stays full is reported."""

import asyncio
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubealign.local.run_dir import disk

_Usage = namedtuple("_Usage", "total used free")


def _free(monkeypatch: pytest.MonkeyPatch, sizes: Iterator[int]) -> None:
    monkeypatch.setattr(disk, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: _Usage(0, 0, next(sizes)))


async def test_three_consecutive_polls_of_a_full_disk_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # 65,536 bytes are enough space; the third poll resets the count.
    sizes = iter([0, 65_535, 65_536, 0, 0, 0, 99])
    _free(monkeypatch, sizes)
    async with asyncio.timeout(10):
        await disk.wait_until_full(Path("/runs"))
    assert list(sizes) == [99]


async def test_disk_with_space_is_polled_indefinitely(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, iter([65_536] * 1_000_000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await disk.wait_until_full(Path("/runs"))


async def test_three_consecutive_polls_with_room_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([70_000, 70_000, 0, 70_000, 70_000, 70_000, 99])
    _free(monkeypatch, sizes)
    async with asyncio.timeout(10):
        await disk.wait_until_room(Path("/runs"))
    assert list(sizes) == [99]
