"""One attempt at a job under one fence: restores the state, runs the training loop, saves a checkpoint on
shutdown.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from kubealign.replay.plan import Replay, read_replay
from kubealign.replay.record import FOLDER
from kubealign.spec.algorithms import Rounds
from kubealign_services.bus.contract import Bus
from kubealign_services.checkpoints.store import CommitStore, CorruptCommit
from kubealign_services.data.prepared import Prepared
from kubealign_services.driver.beat import beat
from kubealign_services.driver.build import (
    asked_ahead,
    build_algorithm,
    build_source,
    build_validation,
    build_weights,
)
from kubealign_services.driver.commits import Commits, TrainedPrompts
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.failures import JobFailed, Stopping
from kubealign_services.driver.frozen import build_frozen
from kubealign_services.driver.grace import Grace
from kubealign_services.driver.loop import align
from kubealign_services.driver.members import Gate, Policy, Values
from kubealign_services.driver.previews import Previews
from kubealign_services.driver.progress import Progress
from kubealign_services.driver.recording import BatchRecorder, RecordingSource
from kubealign_services.driver.replaying import ReplaySource, first_commit
from kubealign_services.driver.report import Report, Sink
from kubealign_services.driver.results import Results
from kubealign_services.driver.resume import resume
from kubealign_services.driver.rounds.build import build_rounds
from kubealign_services.driver.run import Run
from kubealign_services.driver.source import Source
from kubealign_services.driver.state import JobState
from kubealign_services.driver.stopping import save_in_time, told_to_stop
from kubealign_services.driver.token_texts import TokenTexts, decoder
from kubealign_services.driver.training_client import CriticClient, TrainerClient, TrainingClient
from kubealign_services.driver.watched import unless
from kubealign_services.driver.weights import NoWeights, OnDemand, Weights
from kubealign_services.process.context import Context
from kubealign_services.refit.broadcast import RefitFailed
from kubealign_services.rpc.client import Peer
from kubealign_services.rpc.errors import RemoteFailure, StorageFull
from kubealign_services.training.contract import Diverged


async def attempt(
    context: Context,
    prepared: Prepared,
    bus: Bus,
    trainer_peer: Peer,
    critic_peer: Peer | None,
    fence: int,
    sinks: list[Sink],
    progress: Progress,
    grace: Grace,
) -> None:
    """Run the job to its end.

    Raises:
        UnrecoverableError: The job cannot succeed.
        ShutdownRequested: The driver was asked to stop; finished steps with verified weights are saved
            first.
        Unreachable, OutOfOrder, BusUnavailable: The connection to a role or to the message bus was lost.
    """
    spec, run_dir = context.job.spec, context.settings.run_dir
    timeout = spec.trainer.step_timeout_seconds
    trainer = TrainerClient(trainer_peer, fence, timeout)
    critic = None if critic_peer is None else CriticClient(critic_peer, fence, timeout)
    members: list[TrainingClient] = [trainer] if critic is None else [trainer, critic]
    peers = [trainer_peer] if critic_peer is None else [trainer_peer, critic_peer]
    store = CommitStore(run_dir / "commits", spec.checkpoint.keep)
    replay = read_replay(run_dir)
    try:
        async with AsyncExitStack() as stack:

            async def open_run() -> Run:
                initial_checkpoint = None if replay is None else await asyncio.to_thread(first_commit, replay)
                state = await resume(store, members, initial_checkpoint)
                exchange = Exchange(bus, fence, grace.stop, progress.waits)
                await stack.enter_async_context(exchange)
                run = await _build(
                    context,
                    prepared,
                    bus,
                    exchange,
                    trainer,
                    critic,
                    store,
                    members,
                    fence,
                    sinks,
                    state,
                    stack,
                    replay,
                )
                context.heartbeat.describe(lambda: beat(progress, exchange, run.report))
                return run

            run = await unless(open_run(), grace.told())
            await _work(run, peers, grace)
    except RefitFailed as error:
        if grace.stop.is_set():
            # The workers that receive the weights may be shutting down as well.
            raise Stopping from error
        raise JobFailed(str(error)) from error
    except (CorruptCommit, RemoteFailure, StorageFull) as error:
        raise JobFailed(str(error)) from error


async def _work(run: Run, peers: Sequence[Peer], grace: Grace) -> None:
    """Run the training loop until it ends, shutdown is requested, a peer is lost or a refit fails."""
    losses = [run.weights.broken(), *(peer.lost() for peer in peers)]
    try:
        try:
            await unless(align(run, run.state), grace.over(), told_to_stop(run, grace), *losses)
        except Stopping:
            await save_in_time(run, grace)
            raise
    except Diverged as error:
        raise run.no_numbers(run.state.step, error) from error


async def _build(
    context: Context,
    prepared: Prepared,
    bus: Bus,
    exchange: Exchange,
    trainer: TrainerClient,
    critic: CriticClient | None,
    store: CommitStore,
    members: list[TrainingClient],
    fence: int,
    sinks: list[Sink],
    state: JobState,
    stack: AsyncExitStack,
    replay: Replay | None,
) -> Run:
    """Wire up everything that the training loop uses."""
    job, run_dir = context.job, context.settings.run_dir
    algorithm = build_algorithm(job)
    report = Report(run_dir / "metrics.jsonl", fence, sinks)
    previews = Previews(TokenTexts(lambda: decoder(prepared.tokenizer)), job.spec.seed)
    weights: Weights = NoWeights()
    if replay is None:
        weights = await build_weights(job, bus, trainer, stack)
    history = TrainedPrompts(run_dir / "history.jsonl", fence)
    history.resume_at(state)
    rollout = job.spec.effective_rollout if job.spec.algorithm.value.online else None
    frozen = build_frozen(job, exchange, trainer, run_dir / "frozen")
    policy, values = Policy(trainer, algorithm.needs_old_logprobs), Values(critic)
    ahead = asked_ahead(job, policy, values)
    for prefetcher in ahead:
        stack.push_async_callback(prefetcher.close)
    source: Source
    if replay is not None:
        source = ReplaySource(replay, algorithm, context.stop)
    elif isinstance(job.spec.algorithm.value, Rounds):
        # Weights are published when a round begins, not at every step.
        assert isinstance(weights, OnDemand)
        source = build_rounds(
            job, prepared, exchange, trainer, weights, algorithm, previews, run_dir, context.stop
        )
    else:
        source = build_source(job, prepared, state, exchange, trainer, critic, context.stop, frozen, ahead)
    if job.spec.checkpoint.record_batches:
        recorder = BatchRecorder(run_dir / FOLDER, fence, job.spec.seed)
        recorder.resume_at(state.step)
        source = RecordingSource(source, recorder)
    return Run(
        run_dir=run_dir,
        # A replay keeps the recorded job's number of steps, because schedules depend on it.
        max_steps=job.spec.max_steps if replay is None else replay.last_step,
        commit_every=job.spec.checkpoint.every_steps,
        critic_warmup_steps=getattr(job.spec.algorithm.value, "critic_warmup_steps", 0),
        algorithm=algorithm,
        source=source,
        trainer_client=trainer,
        critic_client=critic,
        trainer=policy,
        critic=values,
        gate=Gate(rollout.mismatch_gate if rollout else None),
        weights=weights,
        previews=previews,
        validation=build_validation(
            job,
            prepared,
            exchange,
            trainer,
            critic,
            weights,
            report,
            previews,
            run_dir / "validation",
            algorithm,
            frozen,
        ),
        commits=Commits(job.name, fence, store, members),
        history=history,
        results=Results(trainer, run_dir / "result"),
        report=report,
        state=state,
    )
