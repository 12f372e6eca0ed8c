"""Weight shards of a tensor-parallel rollout worker: each process fetches only its own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from kubealign.spec.sections.engines import Engine
from kubealign.v1 import refit_pb2
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_runner import ShardedModelRunner
from kubealign_services.generation.torch_engine.tensor_parallel.sharding import ModelShard, shard_extent
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.weights.receive.transfer_plan import RangeSelector
from kubealign_services.weights.receive.receiver_factory import open_receiver
from kubealign_services.weights.announce.tensor_box import Box

# Additional time after the transfer's deadline to copy the fetched tensors.
_COPY_TIMEOUT_SECONDS = 60.0


def make_shard_selector(engine: Engine, rank: int) -> RangeSelector | None:
    """Return a function that selects the shard of each tensor for a process; None: all tensors whole, for a
    single process.
    """
    if engine.torch is None or engine.torch.tensor_parallel == 1:
        return None
    shard = ModelShard(rank, engine.torch.tensor_parallel)

    def select(name: str, shape: tuple[int, ...]) -> Sequence[Box]:
        parts = shard_extent(name, shape, shard) if shape else ()
        box = Box(tuple(part.start for part in parts), tuple(len(part) for part in parts))
        return [box] if box.size else []

    return select


@asynccontextmanager
async def open_shard_fetcher(context: ProcessContext, passes: ShardedModelRunner) -> AsyncIterator[Callable[[bytes], None]]:
    """Open the fetch function of a follower, for the thread that computes. The function raises the errors of
    the transfer.
    """
    settings, rollout = context.settings, context.job.spec.rollout
    timeout = rollout.refit.timeout_seconds
    loop = asyncio.get_running_loop()
    select = make_shard_selector(rollout.engine, settings.rank)
    async with open_receiver(settings, rollout.refit, select) as setup:

        async def take(announcement: refit_pb2.WeightsAnnouncement) -> None:
            async with asyncio.timeout(timeout), setup.receiver.fetch(announcement) as transfer:
                transfer.check_valid()
                await asyncio.to_thread(passes.load_own_slices, transfer.tensors.slices())
                transfer.check_valid()

        def fetch(payload: bytes) -> None:
            announcement = refit_pb2.WeightsAnnouncement.FromString(payload)
            asyncio.run_coroutine_threadsafe(take(announcement), loop).result(timeout + _COPY_TIMEOUT_SECONDS)

        yield fetch
