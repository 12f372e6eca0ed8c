"""Rollout worker process: `python -m kubealign_services.rollout.main SETTINGS.json`."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.engines import Engine
from kubealign.spec.rollout import InFlight, Rollout
from kubealign_services.bus.contract import Bus
from kubealign_services.data.prepared import load_prepared
from kubealign_services.generation.contract import Generator
from kubealign_services.process.context import Context
from kubealign_services.process.failures import PermanentFailure
from kubealign_services.process.run import run
from kubealign_services.process.until_stopped import until_stopped
from kubealign_services.refit.receiving import receiving
from kubealign_services.refit.recovery import recovered
from kubealign_services.refit.worker import RefitWorker
from kubealign_services.rollout.engines import opened_generator
from kubealign_services.rollout.fixed_weights import VERSION, FixedWeights, folder_weights
from kubealign_services.rollout.servicer import RolloutServicer
from kubealign_services.rollout.shared_engine import follow_worker
from kubealign_services.rollout.shared_weights import wanted_by
from kubealign_services.rollout.weights import WorkerWeights
from kubealign_services.rollout.worker import RolloutWorker
from kubealign_services.rollout.workflow.contract import WorkflowFailed
from kubealign_services.rollout.workflow.opened import opened_samples
from kubealign_services.scoring.errors import RewardMissing
from kubealign_services.telemetry.pace import Rate

#: Opens the worker's engine, like `open_generator`.
Opened = Callable[[Context, Engine, Path], AbstractAsyncContextManager[Generator]]


async def serve(context: Context, opened: Opened = opened_generator) -> None:
    """Generate until stopped."""
    settings = context.settings
    rollout = context.job.spec.effective_rollout
    if rollout is None:
        raise PermanentFailure(f"{context.job.spec.algorithm.member} does not sample in this job")
    prepared = load_prepared(settings.run_dir)
    folder = prepared.model("policy")
    trains, trainer = context.job.spec.algorithm.value.trains, context.job.spec.trainer
    timeout = rollout.refit.timeout_seconds
    async with context.bus() as bus, opened(context, rollout.engine, folder) as generator:

        async def load_base() -> None:
            if not trains or trainer.lora is not None:
                # In a job with adapters: their base weights.
                async with generator.quiet(InFlight.DRAIN):
                    await generator.refit(folder_weights(folder), VERSION)

        await load_base()
        if not trains:
            fixed = FixedWeights()
            reloading = fixed.kept(generator.lost, load_base)
            await _work(context, bus, generator, rollout, prepared.tokenizer, fixed, reloading)
            return
        select_shard = wanted_by(rollout.engine, settings.rank)
        async with receiving(settings, rollout.refit, select_shard) as setup:
            refit = RefitWorker(
                settings.name, bus, setup.receiver, generator, timeout, context.job.spec.in_flight
            )
            await _work(
                context,
                bus,
                generator,
                rollout,
                prepared.tokenizer,
                refit,
                refit.run(),
                recovered(refit, generator.lost, load_base),
                servicers=setup.servicers,
            )


async def _work(
    context: Context,
    bus: Bus,
    generator: Generator,
    rollout: Rollout,
    tokenizer: PreTrainedTokenizerBase,
    weights: WorkerWeights,
    *others: Coroutine[Any, Any, None],
    servicers: Sequence[object] = (),
) -> None:
    """Serve and pull work until stopped; `others` run concurrently.

    Args:
        servicers: Additional gRPC services.
    """
    name = context.settings.name
    capacity = rollout.engine.value.max_sequences
    tokens = Rate()
    context.heartbeat.describe(lambda: _described(generator, weights, tokens))
    try:
        async with opened_samples(rollout.workflow, generator, name, tokenizer) as samples:
            worker = RolloutWorker(name, bus, generator, weights, capacity, samples)
            # In the trainer's process the worker has no address: its work arrives by the bus alone.
            reachable = context.settings.listen is not None
            servicer = RolloutServicer(name, generator, weights, samples)
            async with context.serve([servicer, *servicers]) if reachable else nullcontext():
                await until_stopped(context.stop, generator.run(), worker.run(), *others)
    except (WorkflowFailed, RewardMissing) as error:
        raise PermanentFailure(str(error)) from error


def _described(generator: Generator, refit: WorkerWeights, tokens: Rate) -> dict[str, Any]:
    """Return the heartbeat payload (docs/metrics.md)."""
    payload: dict[str, Any] = {
        "weight_version": refit.current.version if refit.current is not None else None,
        "running": generator.load.running,
        "waiting": generator.load.waiting,
        "tokens_per_second": round(tokens.per_second(generator.load.generated_tokens), 1),
        "quarantined": refit.quarantined,
    }
    if refit.cause:
        payload["last_error"] = refit.cause
    if refit.last is not None:
        payload["refit_seconds"] = round(refit.last.seconds, 3)
        payload["refit_bytes"] = refit.last.received_bytes
        payload["refit_transport"] = refit.last.transport
    return payload


async def _begin(context: Context) -> None:
    """Serve in the first process of a worker; other processes of the worker follow it."""
    settings, rollout = context.settings, context.job.spec.effective_rollout
    if settings.rank == 0 or rollout is None or rollout.engine.torch is None:
        await serve(context)
    else:
        folder = load_prepared(settings.run_dir).model("policy")
        await follow_worker(context, rollout.engine.torch, folder)


def main(argv: list[str]) -> int:
    return run(_begin, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
