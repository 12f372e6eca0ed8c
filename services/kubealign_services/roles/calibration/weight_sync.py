"""Measures the transfer of new weights from the trainer into an engine over shared memory."""

import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kubealign.spec.sections.rollout import WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.generation.contract import RolloutEngine
from kubealign_services.roles.calibration.time_budget import TimeBudget
from kubealign_services.training.contract import TrainingBackend
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.send.publisher import WeightsPublisher

_MEMORY_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
#: The first two syncs allocate the memory of the two snapshots.
_WARM_UP_SYNCS, _MAX_SYNCS = 2, 5
_TIMEOUT = 600.0


@dataclass(frozen=True)
class WeightSyncTiming:
    """Median time of a weight sync, and its size."""

    seconds: float
    size_bytes: int


async def measure_weight_sync(
    backend: TrainingBackend, engine: RolloutEngine, budget: TimeBudget
) -> WeightSyncTiming:
    """Measure complete weight syncs: publish, verify, load into the engine. The engine keeps the weights."""
    with tempfile.TemporaryDirectory(dir=_MEMORY_FOLDER) as folder:
        publisher = WeightsPublisher(Path(folder), None, WeightTransport.SHARED_MEMORY)
        receiver = WeightsReceiver(Path(folder), _no_stream, _TIMEOUT)
        try:
            seconds: list[float] = []
            while len(seconds) < _WARM_UP_SYNCS + 1 or (
                len(seconds) < _MAX_SYNCS and budget.seconds_left > seconds[-1]
            ):
                started = time.perf_counter()
                announcement = publisher.publish(
                    fence=1, version=len(seconds), tensors=backend.snapshot(), canary=refit_pb2.Canary()
                )
                async with receiver.fetch(announcement) as transfer:
                    engine.refit(transfer.tensors, len(seconds))
                    transfer.check_valid()
                seconds.append(time.perf_counter() - started)
        finally:
            publisher.close()
    return WeightSyncTiming(
        median(seconds[_WARM_UP_SYNCS:]), sum(part.size_bytes for part in announcement.parts)
    )


async def _no_stream(
    address: str, request: refit_pb2.FetchWeightsRequest, timeout: float
) -> AsyncGenerator[refit_pb2.WeightsChunk]:
    raise LookupError(f"nothing is streamed from {address}: the weights are in shared memory")
    yield
