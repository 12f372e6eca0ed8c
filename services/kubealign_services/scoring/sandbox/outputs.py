"""Pipes from sandboxes, of which a worker reads no more than a limit."""

import os
import selectors
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kubealign_services.scoring.sandbox.errors import SandboxFailed

_START_SECONDS = 60.0
_CHUNK_BYTES = 2**16


class Output:
    """A pipe; use as a context manager, which closes it.

    Args:
        limit: Bytes; a sandbox that writes more has exceeded it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._read, self._write = os.pipe()
        self._has_writer = True
        self.content = bytearray()

    @property
    def writer(self) -> int:
        """End for the sandbox."""
        return self._write

    @property
    def has_exceeded(self) -> bool:
        """True once the sandbox has written more than the limit."""
        return len(self.content) > self.limit

    def fileno(self) -> int:
        """Return the end of the worker, for selectors."""
        return self._read

    def close_writer(self) -> None:
        """Close the worker's copy of the sandbox's end, once the sandbox has started."""
        if self._has_writer:
            os.close(self._write)
            self._has_writer = False

    def read(self) -> bool:
        """Read what is there; return False at the end."""
        chunk = os.read(self._read, _CHUNK_BYTES)
        self.content += chunk[: self.limit + 1 - len(self.content)]
        return bool(chunk)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_writer()
        os.close(self._read)


def wait_until_ready(signals: Sequence[Output]) -> None:
    """Wait for the byte by which each script says that it begins. Raises SandboxFailed."""
    deadline = time.monotonic() + _START_SECONDS
    with selectors.DefaultSelector() as selector:
        for signal in signals:
            selector.register(signal, selectors.EVENT_READ)
        while selector.get_map():
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                raise SandboxFailed(f"a sandbox did not start within {_START_SECONDS:g} s")
            for key, _ in events:
                assert isinstance(key.fileobj, Output)
                if not key.fileobj.read():
                    raise SandboxFailed("a sandbox ended before it began: the memory limit may be too low")
                selector.unregister(key.fileobj)


def read_until(last: Output, others: Sequence[Output], seconds: float) -> bool:
    """Read until `last` ends or any output exceeds its limit; return False when the time is over before.

    Outputs are read on until the end, so that no sandbox waits for its reader.
    """
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for output in (last, *others):
            selector.register(output, selectors.EVENT_READ)
        while (remaining := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(remaining):
                assert isinstance(key.fileobj, Output)
                output = key.fileobj
                if output.read():
                    if output.has_exceeded:
                        return True
                    continue
                if output is last:
                    return True
                selector.unregister(output)
    return False
