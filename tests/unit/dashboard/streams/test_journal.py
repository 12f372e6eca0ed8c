"""The journal: one copy of the last events for readers of any pace."""

import asyncio

import pytest

from kubealign_dashboard.streams.journal import Journal, ReaderFellBehind


async def read(journal: Journal[int], position: int) -> list[int]:
    return [item async for _, item in journal.follow(position)]


async def test_each_reader_gets_every_event_from_its_position() -> None:
    journal: Journal[int] = Journal(10)
    journal.append(0)
    readers = [asyncio.ensure_future(read(journal, position)) for position in (0, 1)]
    for item in (1, 2):
        await asyncio.sleep(0)
        journal.append(item)
    journal.close()
    assert [await reader for reader in readers] == [[0, 1, 2], [1, 2]]


async def test_a_reader_that_fell_behind_gets_an_error() -> None:
    journal: Journal[int] = Journal(3)
    for item in range(5):
        journal.append(item)
    assert [journal.contains(position) for position in (1, 2, 5, 6)] == [False, True, True, False]
    with pytest.raises(ReaderFellBehind):
        await read(journal, 1)
    journal.close()
    assert await read(journal, 2) == [2, 3, 4]
