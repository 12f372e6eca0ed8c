"""Work that is given up as soon as something else happens."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kubealign_services.process.until_stopped import end_all

T = TypeVar("T")


async def unless(work: Coroutine[Any, Any, T], *watches: Coroutine[Any, Any, None]) -> T:
    """What `work` returns, unless a watch ends before it: then what that raises, with the work cancelled.

    A watch ends by raising; work that ended in the same moment counts as done."""
    watching = [asyncio.create_task(watch) for watch in watches]
    working = asyncio.create_task(work)
    try:
        await asyncio.wait([working, *watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            for watch in watching:
                if watch.done():
                    watch.result()
                    raise RuntimeError("a watch ended without a reason")
    finally:
        await end_all({working, *watching})
        # Ended: what they raised beside the one that counts is of no interest.
        await asyncio.gather(working, *watching, return_exceptions=True)
    return working.result()
