"""Lag of the event loop: the lease, /livez and every watch wait while one callback runs for long."""

import asyncio

from kubealign_operator.controller.metrics import OperatorMetrics

_INTERVAL_SECONDS = 0.5


async def measure_loop_lag(metrics: OperatorMetrics, interval: float = _INTERVAL_SECONDS) -> None:
    """Record by how many seconds a timer of `interval` seconds is late, again and again, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + interval
        await asyncio.sleep(interval)
        metrics.record_loop_lag(max(0.0, loop.time() - due))
