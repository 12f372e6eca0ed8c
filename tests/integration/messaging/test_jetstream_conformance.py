"""Conformance of the JetStream bus."""

from typing import cast

import pytest

from kubealign_services.messaging.conformance import CHECKS, BusCheck, BusFactory


@pytest.mark.timeout(90, method="signal")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_jetstream_bus(check: BusCheck, connect: object) -> None:
    await check(cast(BusFactory, connect))
