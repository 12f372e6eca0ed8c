"""Logs of a run: one file per process, which may still grow or not exist yet."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

from kubealign.client.backends.local.role_names import process_role
from kubealign.client.records import LogLine

_BLOCK_BYTES = 262_144
_SUFFIX = ".log"
_POLL_SECONDS = 0.25


class LogReader:
    """Incremental reader of one process's log. `tail` limits the lines that exist at first."""

    def __init__(self, path: Path, tail: int | None = None) -> None:
        self.process = path.name.removesuffix(_SUFFIX)
        self._path = path
        self._offset = 0 if tail is None else _tail_offset(path, tail)
        self._partial_line = b""

    def read(self) -> tuple[list[LogLine], bool]:
        """Return the next complete lines, and True if more can be read at once."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    # The run was deleted, and another one of the same name was started.
                    self._offset, self._partial_line = 0, b""
                file.seek(self._offset)
                block = file.read(_BLOCK_BYTES)
        except FileNotFoundError:
            return [], False
        self._offset += len(block)
        *lines, self._partial_line = (self._partial_line + block).split(b"\n")
        return [self._line(line) for line in lines], len(block) == _BLOCK_BYTES

    def read_remainder(self) -> Iterator[LogLine]:
        """Yield the incomplete last line."""
        if self._partial_line:
            yield self._line(self._partial_line)
            self._partial_line = b""

    def _line(self, line: bytes) -> LogLine:
        return LogLine(self.process, line.decode(errors="replace").rstrip("\r"))


def log_files(logs: Path, process: str | None, role: str | None) -> Sequence[Path]:
    """Return the existing log files of one process, of a role, or of all processes."""
    if process is not None:
        path = logs / f"{process}{_SUFFIX}"
        is_selected = path.parent == logs and path.exists() and role in (None, process_role(process))
        return [path] if is_selected else []
    return sorted(
        path
        for path in logs.glob(f"*{_SUFFIX}")
        if role in (None, process_role(path.name.removesuffix(_SUFFIX)))
    )


def _tail_offset(path: Path, lines: int) -> int:
    """Return the byte offset at which the last `lines` lines begin."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return 0
    with file:
        start = end = file.seek(0, 2)
        if lines <= 0:
            return end
        # The last line's line end does not separate it from a previous line.
        missing = lines + 1
        while start > 0:
            size = min(_BLOCK_BYTES, start)
            start -= size
            file.seek(start)
            block = file.read(size)
            stop = len(block)
            if start + size == end and not block.endswith(b"\n"):
                missing -= 1
            while (cut := block.rfind(b"\n", 0, stop)) >= 0:
                missing -= 1
                if missing == 0:
                    return start + cut + 1
                stop = cut
        return 0


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
