"""New weights of a rollout worker of several processes: each fetches the parts that it holds, and no more."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from kubealign.spec.engines import Engine
from kubealign.v1 import refit_pb2
from kubealign_services.generation.torch_engine.tensor_parallel.sliced_passes import SlicedPasses
from kubealign_services.generation.torch_engine.tensor_parallel.slicing import Shard, extent
from kubealign_services.process.context import Context
from kubealign_services.refit.plan import Wanted
from kubealign_services.refit.receiving import receiving
from kubealign_services.refit.tiling import Box

# Beyond the transfer's own deadline: what was fetched is copied.
_COPY_SECONDS = 60.0


def wanted_by(engine: Engine, rank: int) -> Wanted | None:
    """What a process of a worker fetches of each tensor; None: all of it, where it is the only one."""
    if engine.torch is None or engine.torch.tensor_parallel == 1:
        return None
    shard = Shard(rank, engine.torch.tensor_parallel)

    def wanted(name: str, shape: tuple[int, ...]) -> Sequence[Box]:
        parts = extent(name, shape, shard) if shape else ()
        box = Box(tuple(part.start for part in parts), tuple(len(part) for part in parts))
        return [box] if box.size else []

    return wanted


@asynccontextmanager
async def own_parts(context: Context, passes: SlicedPasses) -> AsyncIterator[Callable[[bytes], None]]:
    """What a process that follows does with an announcement, on the thread that computes. Raises what the
    transfer does."""
    settings, rollout = context.settings, context.job.spec.rollout
    timeout = rollout.refit.timeout_seconds
    loop = asyncio.get_running_loop()
    wanted = wanted_by(rollout.engine, settings.rank)
    async with receiving(settings, rollout.refit, wanted) as received:

        async def take(announcement: refit_pb2.WeightsAnnouncement) -> None:
            async with asyncio.timeout(timeout), received.receiver.fetch(announcement) as transfer:
                transfer.confirm()
                await asyncio.to_thread(passes.take_own, transfer.tensors.slices())
                transfer.confirm()

        def fetch(payload: bytes) -> None:
            announcement = refit_pb2.WeightsAnnouncement.FromString(payload)
            asyncio.run_coroutine_threadsafe(take(announcement), loop).result(timeout + _COPY_SECONDS)

        yield fetch
