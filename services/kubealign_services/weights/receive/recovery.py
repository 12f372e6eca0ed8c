"""Restores the weights of a target that has lost them: the newest announced ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kubealign.backoff import restart_backoff
from kubealign_services.weights.receive.refit_worker import RefitWorker

log = logging.getLogger(__name__)

#: Waits until the target has lost its weights; returns the cause.
WaitForLoss = Callable[[], Awaitable[str]]


async def recover_weights(
    worker: RefitWorker, wait_for_loss: WaitForLoss, load_base: Callable[[], Awaitable[None]]
) -> None:
    """Restore lost weights forever, concurrently with `worker.run`.

    The worker is quarantined from the loss until a transfer succeeds.

    Args:
        load_base: Loads the weights that precede any announcement, to which a job's adapters apply.

    Raises:
        Exception: Any error of `load_base`, except a repeated loss (ConnectionError).
    """
    while True:
        await worker.mark_weights_lost(await wait_for_loss())
        backoff, based = restart_backoff(), False
        while worker.lacks_weights or not based:
            try:
                await load_base()
                based = True
                await worker.retry()
            except ConnectionError as error:
                # Lost again; wait_for_loss reports that too.
                log.warning("restoring lost weights failed", extra={"cause": str(error)})
            if worker.lacks_weights or not based:
                await asyncio.sleep(backoff.next_delay())
