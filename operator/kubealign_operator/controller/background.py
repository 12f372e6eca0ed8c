"""Background tasks that must not end the operator: supervised, counted and retried with backoff."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kubealign.backoff import RESET_AFTER_SECONDS, Backoff
from kubealign_operator.controller.metrics import OperatorMetrics

log = logging.getLogger(__name__)

_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 1.0, 60.0


async def run_supervised(task: str, run: Callable[[], Awaitable[None]], metrics: OperatorMetrics) -> None:
    """Run a task, and run it again after it failed, until it returns or is cancelled.

    For tasks without which jobs run as usual, such as those that read what jobs have written. A failure is
    logged and counted in kubealign_operator_background_failures_total.

    Args:
        task: Name of the task in the log and in the metric.
        run: Starts the task; it keeps its state between two calls.
        metrics: Counts the failures.
    """
    backoff = Backoff(_INITIAL_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS)
    loop = asyncio.get_running_loop()
    while True:
        started = loop.time()
        try:
            await run()
            return
        except Exception:
            metrics.record_background_failure(task)
            log.exception("the task %s failed and is started again", task, extra={"task": task})
        if loop.time() - started > RESET_AFTER_SECONDS:
            backoff.reset()
        await asyncio.sleep(backoff.next_delay())
