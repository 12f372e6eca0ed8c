"""A full disk: only one that stays full ends a run."""

import asyncio
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubealign.local import disk

_Usage = namedtuple("_Usage", "total used free")


def _free(monkeypatch: pytest.MonkeyPatch, sizes: Iterator[int]) -> None:
    monkeypatch.setattr(disk, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: _Usage(0, 0, next(sizes)))


async def test_three_looks_in_a_row_without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # 65,536 bytes are room; the count begins again after the second look.
    sizes = iter([0, 65_535, 65_536, 0, 0, 0, 99])
    _free(monkeypatch, sizes)
    async with asyncio.timeout(10):
        await disk.filled_up(Path("/runs"))
    assert list(sizes) == [99]


async def test_a_disk_with_room_is_looked_at_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, iter([65_536] * 1_000_000))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await disk.filled_up(Path("/runs"))
