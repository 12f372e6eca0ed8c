"""Two parts of one process, which ends when the leading one does, or when the other one fails."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from kubealign_services.process.until_stopped import end_all

#: What a leading part gets to end in good order after the other one has failed, in seconds.
_PARTING_SECONDS = 5.0


async def side_by_side(
    leading: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None], *, patient: bool
) -> None:
    """Run both until `leading` ends; then `other` is cancelled and waited for. `other` may end before.

    patient: a leading part whose company has failed is cancelled and has some seconds to end; else it is left
    to the process's end. Raises what the part that ended raised.
    """
    leader, company = asyncio.create_task(leading), asyncio.create_task(other)
    try:
        await asyncio.wait([leader, company], return_when=asyncio.FIRST_COMPLETED)
        if company.done() and not company.cancelled() and company.exception() is not None:
            leader.cancel()
            if patient:
                await asyncio.wait([leader], timeout=_PARTING_SECONDS)
            company.result()
        await leader
    finally:
        if not leader.done():
            leader.cancel()
        await end_all({company})
