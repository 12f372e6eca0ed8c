"""Liveness of a process for the runner on one machine: a file that the event loop touches."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

log = logging.getLogger(__name__)

TOUCH_SECONDS = 1.0


@asynccontextmanager
async def touch_while_alive(
    path: Path | None, is_live: Callable[[], bool], period: float = TOUCH_SECONDS
) -> AsyncIterator[None]:
    """Touch the file each second while the context is open, the event loop runs and `is_live` holds.

    A file, as nothing on a shared machine may listen without authentication. None: nothing is touched.
    """
    if path is None:
        yield
        return
    task = asyncio.create_task(_touch_periodically(path, is_live, period), name="liveness")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _touch_periodically(path: Path, is_live: Callable[[], bool], period: float) -> None:
    is_reported = False
    while True:
        try:
            if is_live():
                # On a memory file system: not worth a thread, which would also hide a blocked event loop.
                path.touch(mode=0o600)  # noqa: ASYNC240
        except OSError as error:
            if not is_reported:
                log.warning("the liveness file cannot be touched: %s", error)
            is_reported = True
        await asyncio.sleep(period)
