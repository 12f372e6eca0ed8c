"""A target that has lost its weights gets them again: the newest that were announced, all of them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kubealign.backoff import restart_delay
from kubealign_services.refit.worker import RefitWorker

log = logging.getLogger(__name__)

#: Returns, with the cause, when the target's weights are gone.
Lost = Callable[[], Awaitable[str]]


async def recovered(worker: RefitWorker, lost: Lost, base: Callable[[], Awaitable[None]]) -> None:
    """Beside `worker.run`, for ever. From the loss until a transfer passes the worker is quarantined.

    base: gives the target what comes before any announced weights: that to which a job's adapters are
    adapters. Raises what it raises, but for a target that is lost once more."""
    while True:
        await worker.lose(await lost())
        tries, based = 0, False
        while worker.lacks_weights or not based:
            try:
                await base()
                based = True
                await worker.take_again()
            except ConnectionError as error:
                # Lost once more, which is told as the first time.
                log.warning("weights could not be given again", extra={"cause": str(error)})
            if worker.lacks_weights or not based:
                tries += 1
                await asyncio.sleep(restart_delay(tries, 0.0))
