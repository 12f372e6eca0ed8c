"""Bounds of a stream for which processes have different limits."""

from collections.abc import Callable
from typing import Any

import pytest

from kubealign.process_settings import TlsFiles
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.messaging.retention_limits import Bounds

pytestmark = pytest.mark.timeout(60, method="signal")


async def test_the_larger_bounds_hold(make_server: Callable[..., Any], driver_tls: TlsFiles) -> None:
    """Check that a process without the prepared data, which knows no columns, neither keeps the bounds of a
    stream small nor makes them smaller.
    """
    server = make_server()
    buses = []
    try:
        for index, limit in enumerate((2, 5, 2)):
            bounds = {"work": Bounds(limit, 1 << 20)}
            bus = await JetStreamBus.connect(server.access, driver_tls, name=f"bus-{index}", bounds=bounds)
            buses.append(bus)
            for number in range(2):
                await bus.publish("work", b"%d%d" % (index, number), f"{index}-{number}")
        stored = await buses[-1].pull("work", "rollout", 8, 5.0)
        assert [delivery.data for delivery in stored] == [b"01", b"10", b"11", b"20", b"21"]
    finally:
        for bus in buses:
            await bus.close()
