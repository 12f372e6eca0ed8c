"""Streams the lines of a run's logs as they are written."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from kubealign.client.backends.local.logs import LogReader, log_files
from kubealign.client.records import LogLine

_POLL_SECONDS = 0.25


async def stream_logs(
    logs: Path,
    process: str | None,
    role: str | None,
    tail: int | None,
    may_grow: Callable[[], Awaitable[bool]],
) -> AsyncIterator[LogLine]:
    """Yield the existing lines, then new ones for as long as `may_grow` returns True.

    Logs that are created later are read from their beginning.
    """
    readers: dict[Path, LogReader] = {}
    first = True
    while True:
        # Checked before the last read, so that lines written before the end are not missed.
        is_running = await may_grow()
        for path in await asyncio.to_thread(log_files, logs, process, role):
            if path not in readers:
                readers[path] = await asyncio.to_thread(LogReader, path, tail if first else None)
        first = False
        for log in readers.values():
            has_more = True
            while has_more:
                lines, has_more = await asyncio.to_thread(log.read)
                for line in lines:
                    yield line
        if not is_running:
            break
        # File growth triggers no event.
        await asyncio.sleep(_POLL_SECONDS)
    for log in readers.values():
        for line in log.read_remainder():
            yield line
