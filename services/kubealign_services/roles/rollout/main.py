"""Rollout worker process: `python -m kubealign_services.roles.rollout.main SETTINGS.json`."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from kubealign.process_settings import ProcessSettings
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.engines import Engine
from kubealign.spec.sections.rollout import InFlightPolicy, Rollout
from kubealign_services.data.models.transformers_four import open_readable_policy
from kubealign_services.data.prepared import PreparedJob, load_prepared
from kubealign_services.data.rows.field_mapping import chat_template_kwargs
from kubealign_services.environments.pool import EnvironmentPool
from kubealign_services.environments.replicas.remote_environments import RemoteEnvironments
from kubealign_services.generation.contract import Generator
from kubealign_services.messaging.contract import Bus
from kubealign_services.roles.rollout.agents.external.endpoint import endpoint_address
from kubealign_services.roles.rollout.engine_environment import enter_engine_environment
from kubealign_services.roles.rollout.engine_factory import open_generator
from kubealign_services.roles.rollout.folder_weights import FolderWeights, version_folders
from kubealign_services.roles.rollout.servicer import RolloutServicer
from kubealign_services.roles.rollout.weights import (
    BASE_VERSION,
    WorkerWeights,
    check_base_libraries,
    read_folder_weights,
)
from kubealign_services.roles.rollout.worker import RolloutWorker
from kubealign_services.roles.rollout.workflow.branching import Branching
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.factory import (
    OpenEnvironments,
    check_workflow_libraries,
    open_sample_producer,
)
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.loop_watchdog import watch_event_loop
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped
from kubealign_services.scoring.functions.errors import RewardMissing
from kubealign_services.telemetry.rates import Rate
from kubealign_services.tools.job_tools import load_tools
from kubealign_services.weights.receive.receiver_factory import open_receiver
from kubealign_services.weights.receive.recovery import recover_weights
from kubealign_services.weights.receive.refit_worker import RefitWorker

_MODULE = "kubealign_services.roles.rollout.main"

#: Opens the worker's engine, like `open_generator`.
OpenEngine = Callable[[ProcessContext, Engine, Path], AbstractAsyncContextManager[Generator]]


async def serve(context: ProcessContext, open_engine: OpenEngine = open_generator) -> None:
    """Generate until stopped."""
    settings = context.settings
    rollout = context.job.spec.effective_rollout
    if rollout is None:
        raise PermanentFailure(f"{context.job.spec.algorithm.member} does not sample in this job")
    check_workflow_libraries(rollout.workflow)
    trains, trainer = context.job.spec.algorithm.value.trains, context.job.spec.trainer
    if trains:
        check_base_libraries(trainer)
    timeout = rollout.refit.timeout_seconds
    async with (
        open_readable_policy(load_prepared(settings.run_dir), settings.shared_memory) as prepared,
        context.bus() as bus,
        open_engine(context, rollout.engine, prepared.model_folder("policy")) as generator,
    ):
        if not trains:
            stored = FolderWeights(generator, version_folders(context.job, prepared))
            await stored.load()
            reloading = stored.reload_after_loss(generator.wait_for_weight_loss, stored.load)
            await _run_worker(context, bus, generator, rollout, prepared, stored, reloading)
            return

        async def load_base() -> None:
            if trainer.lora is not None:
                # The base weights of the adapters.
                async with generator.paused(InFlightPolicy.DRAIN):
                    await generator.refit(
                        read_folder_weights(prepared.model_folder("policy"), trainer), BASE_VERSION
                    )

        await load_base()
        select_shard = None
        if rollout.engine.torch is not None:
            # Imported on demand: the torch engine does not run in every engine's environment.
            from kubealign_services.roles.rollout.tensor_parallel import make_shard_selector

            select_shard = make_shard_selector(rollout.engine, settings.rank)
        async with open_receiver(settings, rollout.refit, select_shard) as setup:
            refit = RefitWorker(
                settings.name, bus, setup.receiver, generator, timeout, context.job.spec.in_flight
            )
            await _run_worker(
                context,
                bus,
                generator,
                rollout,
                prepared,
                refit,
                refit.run(),
                recover_weights(refit, generator.wait_for_weight_loss, load_base),
                servicers=setup.servicers,
            )


async def _run_worker(
    context: ProcessContext,
    bus: Bus,
    generator: Generator,
    rollout: Rollout,
    prepared: PreparedJob,
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
    context.heartbeat.set_fields(lambda: _heartbeat_payload(generator, weights, tokens))
    try:
        tools = load_tools(context.job, context.settings.run_dir)
        variables = chat_template_kwargs(context.job.spec.data.value)
        episode_rewards = context.job.spec.episode_rewards
        branching = Branching(
            prepared.tokenizer, rollout.max_sequences_per_sample, prepared.report.longest_prompt, variables
        )
        environments = _environments_in_other_processes(context, bus) or EnvironmentPool
        external = rollout.external_agents
        agents_address = None if external is None else endpoint_address(context.settings, external)
        async with open_sample_producer(
            rollout.workflow,
            generator,
            name,
            prepared.tokenizer,
            episode_rewards,
            tools,
            variables,
            branching,
            environments,
            agents_address,
        ) as samples:
            worker = RolloutWorker(name, bus, generator, weights, capacity, samples)
            worker.on_skip = lambda reason: context.metrics.skipped_work_items.labels(reason).inc()
            # A custom workflow may block this event loop too, by code that holds the interpreter lock.
            has_own_code = rollout.workflow is not None and rollout.workflow.function is not None
            watchdogs = [watch_event_loop()] if has_own_code else []
            # In the trainer's process the worker has no address: its work arrives by the bus alone.
            reachable = context.settings.listen is not None
            servicer = RolloutServicer(name, generator, weights, samples)
            async with context.serve([servicer, *servicers]) if reachable else nullcontext():
                await run_until_stopped(context.stop, generator.run(), worker.run(), *others, *watchdogs)
    except (WorkflowFailed, RewardMissing) as error:
        raise PermanentFailure(str(error)) from error


def _environments_in_other_processes(context: ProcessContext, bus: Bus) -> OpenEnvironments | None:
    """Return what opens the environments in the job's environment workers; None: it has none."""
    if not context.job.spec.environment_replicas:
        return None
    return partial(RemoteEnvironments, bus=bus, name=context.settings.name, tls=context.settings.tls)


def _heartbeat_payload(generator: Generator, weights: WorkerWeights, tokens: Rate) -> dict[str, Any]:
    """Return the heartbeat payload (docs/metrics.md)."""
    payload: dict[str, Any] = {
        "weight_version": weights.current.version if weights.current is not None else None,
        "running": generator.load.running,
        "waiting": generator.load.waiting,
        "tokens_per_second": round(tokens.per_second(generator.load.generated_tokens), 1),
        "quarantined": weights.quarantined,
    }
    if weights.quarantine_reason:
        payload["last_error"] = weights.quarantine_reason
    if weights.last_ack is not None:
        payload["refit_seconds"] = round(weights.last_ack.seconds, 3)
        payload["refit_bytes"] = weights.last_ack.received_bytes
        payload["refit_transport"] = weights.last_ack.transport
    return payload


async def _serve_or_follow(context: ProcessContext) -> None:
    """Serve in the first process of a worker; other processes of the worker follow it."""
    settings, rollout = context.settings, context.job.spec.effective_rollout
    if settings.rank == 0 or rollout is None or rollout.engine.torch is None:
        await serve(context)
    else:
        from kubealign_services.roles.rollout.tensor_parallel import run_follower

        folder = load_prepared(settings.run_dir).model_folder("policy")
        await run_follower(context, rollout.engine.torch, folder)


def main(argv: list[str]) -> int:
    def enter_environment(settings: ProcessSettings, job: AlignmentJob) -> None:
        rollout = job.spec.effective_rollout
        if rollout is not None:
            enter_engine_environment(rollout.engine, _MODULE, argv[1], settings.threads)

    return run_role(_serve_or_follow, argv, before_start=enter_environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
