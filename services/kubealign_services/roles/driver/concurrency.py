"""Concurrent or sequential calls of roles."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def run_calls(*calls: Coroutine[Any, Any, T], parallel: bool) -> list[T]:
    """Return the results of the calls in order. Raises the first error.

    Args:
        parallel: Run all calls at the same time; otherwise each after the one before it has ended.
    """
    if parallel:
        return await asyncio.gather(*calls)
    try:
        return [await call for call in calls]
    finally:
        for call in calls:
            call.close()  # those that an error has left out
