"""Rollout worker with a tensor-parallel engine: the leader's generator, the followers' loop and their
weights.

The leader is an ordinary worker. The followers use neither the bus nor a server: they run the forward
passes that the leader requests, fetch their own shards of new weights, and start and end with the leader.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from kubealign.spec.sections import engines as engine_spec
from kubealign.spec.sections.engines import Engine
from kubealign.v1 import refit_pb2
from kubealign_services.generation.contract import EngineLoad, Generator, RolloutEngine
from kubealign_services.generation.model_folder import read_config
from kubealign_services.generation.torch_engine.tensor_parallel.engine_factory import (
    create_leader_engine,
    create_worker_runner,
)
from kubealign_services.generation.torch_engine.tensor_parallel.leader import ProcessesLost
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_runner import ShardedModelRunner
from kubealign_services.generation.torch_engine.tensor_parallel.sharding import (
    IndivisibleModel,
    ModelShard,
    check_divisible,
    shard_extent,
)
from kubealign_services.generation.torch_engine.tensor_parallel.worker import run_worker
from kubealign_services.roles.rollout.generator import Compute, SteppedGenerator
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.rank_rendezvous import join_process_group
from kubealign_services.runtime.process.run_until_stopped import cancel_and_wait
from kubealign_services.weights.announce.tensor_regions import Box
from kubealign_services.weights.receive.receiver_factory import open_receiver
from kubealign_services.weights.receive.transfer_plan import RangeSelector

# Least timeout in seconds: processes that start together may be this far apart, however short the timeout of
# a group. A process also waits this much longer for the others than each waits for its weights.
_MIN_TIMEOUT_SECONDS = 120.0
# Additional time after the transfer's deadline to copy the fetched tensors.
_COPY_TIMEOUT_SECONDS = 60.0


class LeaderGenerator(SteppedGenerator):
    """Generator that fails when a follower is lost, even while nothing is generated."""

    def __init__(
        self,
        engine: RolloutEngine,
        compute: Compute,
        observe: Callable[[EngineLoad], None],
        lost: asyncio.Future[None],
    ) -> None:
        super().__init__(engine, compute, observe)
        self._lost = lost

    async def run(self) -> None:
        """Step the engine as SteppedGenerator does. Raises ProcessesLost."""
        stepping = asyncio.create_task(super().run())
        try:
            await asyncio.wait({stepping, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            await (self._lost if self._lost.done() else stepping)
        finally:
            await cancel_and_wait({stepping})


@asynccontextmanager
async def open_leader_generator(
    context: ProcessContext,
    spec: engine_spec.TorchEngineSpec,
    folder: Path,
    observe: Callable[[EngineLoad], None],
) -> AsyncIterator[Generator]:
    """Open the leader's generator once the followers have joined.

    The followers end with the context, gracefully unless an error ends it.

    Raises:
        PermanentFailure: The model cannot be sharded over these processes.
        GroupLost: The followers did not join.
    """
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()

    def on_loss(error: ProcessesLost) -> None:
        loop.call_soon_threadsafe(lost.set_exception, error)

    async with _rendezvous(context, spec, folder) as store:
        engine, end = await context.compute(create_leader_engine, folder, spec, store, on_loss)
        yield LeaderGenerator(engine, context.compute_within_deadline, observe, lost)
        with suppress(ProcessesLost):
            await context.compute(end)
    if lost.done():
        # Retrieved here too, so that asyncio does not log it as unhandled.
        lost.exception()


async def run_follower(context: ProcessContext, spec: engine_spec.TorchEngineSpec, folder: Path) -> None:
    """Run a follower until the leader ends. Raises as `open_leader_generator`."""
    async with _rendezvous(context, spec, folder) as store:
        following, passes = await context.compute(
            create_worker_runner, folder, spec, context.settings.rank, store
        )
        context.ready = True
        async with open_shard_fetcher(context, passes) as fetch:
            await context.compute(run_worker, following, passes, fetch)


@asynccontextmanager
async def _rendezvous(
    context: ProcessContext, spec: engine_spec.TorchEngineSpec, folder: Path
) -> AsyncIterator[Store]:
    """Wait for all processes of the worker and yield their store."""
    settings, rollout = context.settings, context.job.spec.rollout
    if settings.rendezvous is None or settings.world_size != spec.tensor_parallel:
        raise PermanentFailure(
            f"rollout.engine.torch.tensorParallel is {spec.tensor_parallel}; this worker was started with "
            f"{settings.world_size} processes"
        )
    try:
        check_divisible(read_config(folder).get_text_config(), ModelShard(settings.rank, settings.world_size))
    except IndivisibleModel as error:
        raise PermanentFailure(str(error)) from error
    timeout = max(rollout.group_timeout_seconds, rollout.refit.timeout_seconds + _MIN_TIMEOUT_SECONDS)
    # Blocks until the other processes have joined, so it must not run on the event loop.
    store = await context.compute(
        join_process_group, settings.rank, settings.world_size, settings.rendezvous, timeout
    )
    try:
        yield store
    finally:
        await context.compute(_leave_group)


def _leave_group() -> None:
    """Leave the process group."""
    if dist.is_initialized():
        dist.destroy_process_group()


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
async def open_shard_fetcher(
    context: ProcessContext, passes: ShardedModelRunner
) -> AsyncIterator[Callable[[bytes], None]]:
    """Open the fetch function of a follower, for the thread that computes.

    The function raises the errors of the transfer.
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
