"""The lines of a run's logs, as they come."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from kubealign.client.local_logs import GrowingLog, log_files
from kubealign.client.records import LogLine

_LOOK_SECONDS = 0.25


async def log_stream(
    logs: Path,
    process: str | None,
    role: str | None,
    tail: int | None,
    going_on: Callable[[], Awaitable[bool]],
) -> AsyncIterator[LogLine]:
    """What is there, then what comes, for as long as `going_on` says that more may come. Logs that are made
    later are read from their beginning."""
    opened: dict[Path, GrowingLog] = {}
    first = True
    while True:
        # Asked before the last look: what was written before the end is seen.
        more = await going_on()
        for path in await asyncio.to_thread(log_files, logs, process, role):
            if path not in opened:
                opened[path] = await asyncio.to_thread(GrowingLog, path, tail if first else None)
        first = False
        for log in opened.values():
            again = True
            while again:
                lines, again = await asyncio.to_thread(log.read)
                for line in lines:
                    yield line
        if not more:
            break
        # A file that grows gives no event.
        await asyncio.sleep(_LOOK_SECONDS)
    for log in opened.values():
        for line in log.rest():
            yield line
