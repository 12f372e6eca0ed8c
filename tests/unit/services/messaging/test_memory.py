"""Conformance of the in-memory bus."""

from collections.abc import Mapping

import pytest

from kubealign_services.messaging.conformance import CHECKS, BusCheck
from kubealign_services.messaging.contract import Bus
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.messaging.retention_limits import Bounds, bounds_for


@pytest.mark.timeout(60)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_memory_bus(check: BusCheck) -> None:
    buses: list[MemoryBus] = []

    async def make(
        name: str = "one", *, ack_wait: float = 30.0, bounds: Mapping[str, Bounds] | None = None
    ) -> Bus:
        bus = buses[0].new_connection(ack_wait) if buses else MemoryBus(ack_wait=ack_wait, bounds=bounds)
        buses.append(bus)
        return bus

    await check(make)


def test_bounds_fit_two_loads() -> None:
    # 3 versions x 40,000 prompts under way, 8 samples each, 2 scorers; 2,000 tokens.
    bounds = bounds_for(groups=120_000, samples_per_group=8, sources=2, longest_sequence=2000)
    assert bounds["work"].messages == 240_000
    assert bounds["rollouts"].messages == 1_920_000
    assert bounds["scores"].messages == 3_840_000
    # A rollout has 4,096 bytes around it and 32 a token: 4,096 + 64,000 = 68,096.
    assert bounds["rollouts"].size_bytes == 1_920_000 * 68_096
    assert bounds["refit"].messages == 1


def test_a_small_job_has_room_for_its_validation() -> None:
    bounds = bounds_for(groups=2, samples_per_group=1, sources=1, longest_sequence=32)
    assert all(bounds[subject].messages >= 50_000 for subject in ("work", "rollouts", "scores"))
