"""One attempt at a job under one fence: restores the state, runs the training loop, saves a checkpoint on
shutdown.
"""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kubealign.replay.plan import ReplayPlan, read_replay_plan
from kubealign.replay.record import FOLDER
from kubealign.spec.algorithms import IterativeSpec
from kubealign.v1 import training_pb2
from kubealign_services.algorithms.contract import outputs_before_step
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.checkpoints.history import CorruptHistory
from kubealign_services.checkpoints.lineage import CorruptLineage, read_lineage, record_start
from kubealign_services.checkpoints.remote.uploader import CheckpointUploader
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import (
    CheckpointCorrupted,
    CheckpointReader,
    CheckpointStore,
    StoredCheckpoint,
)
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.messaging.contract import Bus
from kubealign_services.roles.driver.builder import (
    JobContext,
    build_algorithm,
    build_colocated_scorer,
    build_frozen_models,
    build_prefetchers,
    build_source,
    build_validation,
    build_weight_sync,
)
from kubealign_services.roles.driver.cancellation import run_until_any, wait_until_replaced
from kubealign_services.roles.driver.checkpoint_upload import wait_until_address_taken
from kubealign_services.roles.driver.checkpoints import CheckpointWriter, ResultExporter, TrainingHistory
from kubealign_services.roles.driver.concurrency import run_in_thread
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.judging.builder import open_policy_judges
from kubealign_services.roles.driver.loop import run_training_loop
from kubealign_services.roles.driver.metrics.batch_metrics import objective_metrics
from kubealign_services.roles.driver.metrics.logprob_gap_gate import LogprobGapGate
from kubealign_services.roles.driver.metrics.progress import ProgressTracker, heartbeat_payload
from kubealign_services.roles.driver.metrics.report import MetricSink, MetricsReport
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.parent_run import load_parent_checkpoint
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.shutdown import (
    ShutdownDeadline,
    checkpoint_before_deadline,
    wait_for_shutdown,
)
from kubealign_services.roles.driver.sources.batch_recorder import BatchRecorder, RecordingSource
from kubealign_services.roles.driver.sources.batch_replay import ReplaySource, load_initial_checkpoint
from kubealign_services.roles.driver.sources.batch_sources import BatchSource
from kubealign_services.roles.driver.sources.iterative.builder import build_round_source
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import (
    CriticClient,
    CriticValues,
    OldLogprobs,
    TrainerClient,
    TrainingClient,
    prefix_metrics,
)
from kubealign_services.roles.driver.training_run import TrainingRun
from kubealign_services.roles.driver.weight_sync import NoSync, SyncOnDemand, WeightSync
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.rpc.client import Peer
from kubealign_services.runtime.rpc.errors import RemoteFailure
from kubealign_services.training.contract import ModelDiverged
from kubealign_services.weights.announce.coordinator import RefitFailed, RefitImpossible

log = logging.getLogger(__name__)


async def run_attempt(
    context: ProcessContext,
    prepared: PreparedJob,
    bus: Bus,
    trainer_peer: Peer,
    critic_peer: Peer | None,
    fence: int,
    sinks: list[MetricSink],
    progress: ProgressTracker,
    deadline: ShutdownDeadline,
    uploader: CheckpointUploader | None = None,
) -> None:
    """Run the job to its end.

    Args:
        uploader: Uploads checkpoints to object storage; None: the job has no copies there.

    Raises:
        UnrecoverableError: The job cannot succeed.
        StaleFence: Another driver has taken over.
        ShutdownRequested: The driver was asked to stop; finished steps with verified weights are saved
            first.
        StorageFull, OSError: Storage is full or does not answer.
        Unreachable, OutOfOrder, BusUnavailable: The connection to a role or to the message bus was lost.
        RefitFailed: The trainer or too many rollout workers did not answer in time.
    """
    spec, run_dir = context.job.spec, context.settings.run_dir
    timeout = spec.trainer.step_timeout_seconds
    trainer = TrainerClient(trainer_peer, fence, timeout)
    critic = None if critic_peer is None else CriticClient(critic_peer, fence, timeout)
    members: list[TrainingClient] = [trainer] if critic is None else [trainer, critic]
    peers = [trainer_peer] if critic_peer is None else [trainer_peer, critic_peer]
    run_fence = Fence(run_dir, fence)
    replay = read_replay_plan(run_dir)
    try:
        async with AsyncExitStack() as stack:

            async def open_run() -> TrainingRun:
                previous = CheckpointReader(run_dir, await asyncio.to_thread(read_lineage, run_dir, fence))
                initial_checkpoint = None
                parent = context.settings.parent_run
                if replay is not None:
                    initial_checkpoint = await asyncio.to_thread(load_initial_checkpoint, replay)
                elif parent is not None and previous.latest_step() is None:
                    initial_checkpoint = await run_in_thread(
                        load_parent_checkpoint, context.job, parent, run_fence, prepared.total_steps(spec)
                    )
                restored = await restore_state(previous, members, initial_checkpoint)
                state = restored.state
                lineage = await run_in_thread(record_start, run_fence, state.step)
                history = TrainingHistory(run_fence, lineage)
                await history.resume_at(state)
                if state.step:
                    progress.report_resume(state.step)
                collector = RolloutCollector(bus, fence, deadline.stop, progress.report_wait)
                await stack.enter_async_context(collector)
                await stack.enter_async_context(open_policy_judges(context.job, prepared, collector))
                job_context = JobContext(
                    job=context.job,
                    prepared=prepared,
                    run_dir=run_dir,
                    stop=context.stop,
                    collector=collector,
                    trainer=trainer,
                    critic=critic,
                    history=history,
                    previews=SamplePreviews.of_job(spec, prepared),
                    max_payload=bus.max_payload,
                )
                pinned: Container[Path] = () if uploader is None else uploader.pinned
                store = CheckpointStore(run_fence, lineage, RetentionPolicy.of(spec.checkpoint), pinned)
                if uploader is not None:
                    newest = await asyncio.to_thread(store.reader.newest)
                    if newest is not None:
                        await uploader.enqueue(newest)
                checkpoints = await stack.enter_async_context(
                    CheckpointWriter(context.job.name, run_fence, store, members, uploader)
                )
                background = None if uploader is None else uploader.state.to_metrics
                report = MetricsReport(run_dir / "metrics.jsonl", fence, sinks, background)
                await report.write_recovered(state.step, restored.step_metrics)
                run = await _build_run(job_context, bus, checkpoints, report, state, stack, replay)
                context.heartbeat.set_fields(lambda: heartbeat_payload(progress, collector, run.report))
                return run

            run = await run_until_any(open_run(), deadline.wait_for_request(), wait_until_replaced(run_fence))
            await _run_until_stopped(run, peers, deadline, run_fence, uploader)
    except RefitFailed as error:
        if deadline.stop.is_set():
            # The workers that receive the weights may be shutting down as well.
            raise ShutdownRequested from error
        if isinstance(error, RefitImpossible):
            raise UnrecoverableError(str(error)) from error
        raise
    except (CheckpointCorrupted, CorruptHistory, CorruptLineage, RemoteFailure) as error:
        raise UnrecoverableError(str(error)) from error


async def _run_until_stopped(
    run: TrainingRun,
    peers: Sequence[Peer],
    deadline: ShutdownDeadline,
    fence: Fence,
    uploader: CheckpointUploader | None,
) -> None:
    """Run the training loop until it ends, shutdown is requested, a peer is lost, a refit fails or another
    driver takes over.
    """
    losses = [
        run.weight_sync.wait_for_failure(),
        *(peer.wait_until_unreachable() for peer in peers),
        wait_until_replaced(fence),
        wait_until_address_taken(uploader),
    ]
    try:
        try:
            await run_until_any(
                run_training_loop(run, run.state),
                deadline.wait_for_expiry(),
                wait_for_shutdown(run, deadline),
                *losses,
            )
        except ShutdownRequested:
            await checkpoint_before_deadline(run, deadline)
            raise
    except ModelDiverged as error:
        raise run.non_finite_failure(run.state.step, error) from error


async def _build_run(
    context: JobContext,
    bus: Bus,
    checkpoints: CheckpointWriter,
    report: MetricsReport,
    state: JobState,
    stack: AsyncExitStack,
    replay: ReplayPlan | None,
) -> TrainingRun:
    """Wire up everything that the training loop uses."""
    job, run_dir, trainer = context.job, context.run_dir, context.trainer
    total_steps = context.prepared.total_steps(job.spec)
    algorithm = build_algorithm(job)
    sync: WeightSync = NoSync()
    if replay is None:
        sync = await build_weight_sync(context, bus, stack)
    rollout = job.spec.effective_rollout if job.spec.algorithm.value.online else None
    frozen_models = build_frozen_models(context)
    policy = OldLogprobs(trainer, outputs_before_step(algorithm))
    critic = CriticValues(context.critic)
    colocated = build_colocated_scorer(context)
    prefetchers = build_prefetchers(job, policy, critic, colocated)
    for prefetcher in prefetchers:
        stack.push_async_callback(prefetcher.close)
    source: BatchSource
    if replay is not None:
        source = ReplaySource(replay, algorithm, context.stop)
    elif isinstance(job.spec.algorithm.value, IterativeSpec):
        # Weights are published when a round begins, not at every step.
        assert isinstance(sync, SyncOnDemand)
        source = build_round_source(context, sync, algorithm)
    else:
        source = await build_source(context, state, frozen_models, colocated, prefetchers, stack)
    if job.spec.checkpoint.record_batches:
        recorder = BatchRecorder(run_dir / FOLDER, Fence(run_dir, trainer.fence), job.spec.seed)
        recorder.resume_at(state.step)
        source = RecordingSource(source, recorder)
    return TrainingRun(
        run_dir=run_dir,
        # A replay keeps the recorded job's number of steps, because schedules depend on it.
        max_steps=total_steps if replay is None else replay.last_step,
        checkpoint_every=job.spec.checkpoint.every_steps,
        critic_warmup_steps=getattr(job.spec.algorithm.value, "critic_warmup_steps", 0),
        overlap=job.spec.effective_overlap,
        algorithm=algorithm,
        source=source,
        trainer_client=trainer,
        critic_client=context.critic,
        old_logprobs=policy,
        critic_values=critic,
        logprob_gap_gate=LogprobGapGate(rollout.mismatch_gate if rollout else None),
        weight_sync=sync,
        previews=context.previews,
        validation=build_validation(context, sync, report, algorithm, frozen_models),
        checkpoints=checkpoints,
        history=context.history,
        result_exporter=ResultExporter(trainer, run_dir / "result", Fence(run_dir, trainer.fence)),
        report=report,
        state=state,
    )


@dataclass(frozen=True)
class RestoredState:
    """The state from which a job continues.

    Attributes:
        step_metrics: Metrics of the step that made the state, where trainer and critic still hold them.
    """

    state: JobState
    step_metrics: Mapping[str, float] = field(default_factory=dict)


async def restore_state(
    checkpoints: CheckpointReader,
    members: list[TrainingClient],
    initial_checkpoint: StoredCheckpoint | None = None,
) -> RestoredState:
    """Return the state from which the job continues, after trainer and critic hold it.

    A driver that died alone finds both roles at the same step with its own state, and nothing is repeated.
    Otherwise all roles load the last checkpoint or the initial weights.

    Args:
        checkpoints: Checkpoints of the lineage that the job continues.
        members: Clients of trainer and critic.
        initial_checkpoint: Checkpoint of another run with which this job starts; None: the job's initial
            weights.
    """
    states = [await member.describe() for member in members]
    if (
        all(state.loaded and state.driver_state for state in states)
        and len({state.driver_state for state in states}) == 1
    ):
        state = JobState.model_validate_json(states[0].driver_state)
        if all(member.step == state.step for member in states):
            log.info(
                "trainer and critic agree on the state: continuing without a rollback",
                extra={"step": state.step},
            )
            return RestoredState(state, step_metrics(members, states))
    # Reads every file of the checkpoint, so it must not run on the event loop.
    checkpoint = await asyncio.to_thread(checkpoints.latest) or initial_checkpoint
    state = JobState() if checkpoint is None else JobState.model_validate(checkpoint.manifest.driver_state)
    for member in members:
        await member.load(state, None if checkpoint is None else checkpoint.path / member.role)
    failpoint(Failpoint.RESUME_AFTER_LOAD)
    log.info(
        "trainer and critic loaded",
        extra={"step": state.step, "commit": str(checkpoint.path) if checkpoint else "none"},
    )
    return RestoredState(state)


def step_metrics(
    members: Sequence[TrainingClient], states: Sequence[training_pb2.TrainingState]
) -> dict[str, float]:
    """Return the metrics of the last TrainStep: those that the driver had measured before it, and those of
    trainer and critic. Empty after Load.
    """
    metrics = dict(states[0].driver_metrics.values)
    if not metrics:
        return {}
    for member, state in zip(members, states, strict=True):
        metrics |= prefix_metrics(dict(state.metrics.values), member.role)
    return metrics | objective_metrics(metrics)
