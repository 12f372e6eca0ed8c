"""Builds the objects of the training loop from a job's spec and its prepared data."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kubealign.spec.held_out_rows import HeldOutRows
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rewards import Reward, RewardPlacement
from kubealign.spec.sections.rollout import (
    InFlightPolicy,
    ReferencePlacement,
    Rollout,
    RolloutPlacement,
    SampleScoring,
    SamplingSpec,
)
from kubealign.spec.sections.validation import ValidationSampling
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.data.epoch_shuffle import RowOrder
from kubealign_services.data.mixture import build_row_order
from kubealign_services.data.prepared import DatasetReport, PreparedJob, PreparedRow, PreparedRows
from kubealign_services.data.prepared_files import read_routing_record_bytes
from kubealign_services.data.prompt_sources import find_reward_sources
from kubealign_services.data.streaming.row_stream import StreamState
from kubealign_services.data.streaming.tokenized_stream import open_stream
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.messaging.contract import Bus
from kubealign_services.roles.driver.checkpoints import TrainingHistory
from kubealign_services.roles.driver.frozen_models.cache import FrozenScoreCache
from kubealign_services.roles.driver.frozen_models.reference import (
    FrozenReference,
    LogprobsRequest,
    request_over_bus,
    score_hinted,
)
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.frozen_models.teacher import TEACHER, FrozenTeacher
from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.parent_run import read_first_step
from kubealign_services.roles.driver.rollouts.batch_assembly import REFERENCE, SamplingInfo
from kubealign_services.roles.driver.rollouts.batch_scoring import BatchScoring
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.curriculum import Curriculum, MeanReward
from kubealign_services.roles.driver.rollouts.dynamic_sampling import DynamicSamplingFilter
from kubealign_services.roles.driver.rollouts.group_buffer import GroupBuffer, GroupBufferOptions, GroupPlan
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from kubealign_services.roles.driver.rollouts.prefetch import ForwardCall, ForwardPrefetcher
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts, TrainingPrompts
from kubealign_services.roles.driver.rollouts.streamed_prompts import StreamedPrompts, wait_for_read
from kubealign_services.roles.driver.rollouts.work_items import to_sampling_proto
from kubealign_services.roles.driver.sources.batch_sources import (
    BatchSource,
    FrozenModels,
    GroupSource,
    NoFrozenModels,
    RowSource,
    SampleScorers,
)
from kubealign_services.roles.driver.sources.row_batches import RowBatches
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import (
    ColocatedScorer,
    CriticClient,
    CriticValues,
    OldLogprobs,
    TrainerClient,
)
from kubealign_services.roles.driver.validation.initial_policy import (
    InitialPolicyResponses,
    InitialPolicySampler,
    RowsWithInitialPolicy,
)
from kubealign_services.roles.driver.validation.metrics import SummaryOptions
from kubealign_services.roles.driver.validation.samples import ValidationSample
from kubealign_services.roles.driver.validation.sampling import ValidationSampler, ValidationScorers
from kubealign_services.roles.driver.validation.saved_groups import SavedGroups
from kubealign_services.roles.driver.validation.validation import (
    HeldOutLoss,
    Measurement,
    SampledResponses,
    ScheduledRows,
    ValidationSchedule,
)
from kubealign_services.roles.driver.weight_sync import (
    AsyncSync,
    NoSync,
    SnapshotPublisher,
    SyncEveryStep,
    SyncOnDemand,
    WeightSync,
)
from kubealign_services.runtime.process.bus_load import request_window
from kubealign_services.scoring.group_requests import group_sources
from kubealign_services.scoring.purposes import TRAINING, validation_purpose
from kubealign_services.weights.announce.coordinator import RefitCoordinator


@dataclass(frozen=True)
class ValidationContext:
    """Objects that measurements of sampled responses use."""

    job: AlignmentJob
    prepared: PreparedJob
    run_dir: Path
    collector: RolloutCollector
    critic: CriticClient | None
    previews: SamplePreviews


@dataclass(frozen=True)
class JobContext(ValidationContext):
    """Objects that the builders of one attempt share."""

    stop: asyncio.Event
    trainer: TrainerClient
    history: TrainingHistory
    #: Longest message of the bus in bytes.
    max_payload: int


def build_algorithm(job: AlignmentJob) -> Algorithm:
    """Create the algorithm that the spec names. Raises LookupError if it is not installed."""
    return make_algorithm(job.spec.algorithm)


async def build_weight_sync(context: JobContext, bus: Bus, stack: AsyncExitStack) -> WeightSync:
    """Choose when rollout workers get new weights: each step, asynchronously, on demand or never."""
    job, trainer = context.job, context.trainer
    rollout = job.spec.effective_rollout
    if rollout is None:
        return NoSync()
    snapshots = SnapshotPublisher(trainer.publish_weights)
    coordinator = await stack.enter_async_context(
        RefitCoordinator(
            bus,
            snapshots,
            fence=trainer.fence,
            min_replicas=rollout.min_replicas,
            replicas=rollout.replicas,
            timeout=rollout.refit.timeout_seconds,
        )
    )
    algorithm = job.spec.algorithm.value
    if not algorithm.online:
        return SyncOnDemand(coordinator)
    return AsyncSync(coordinator, snapshots) if algorithm.max_staleness else SyncEveryStep(coordinator)


def bus_rewards(job: AlignmentJob) -> list[str]:
    """Return the names of the rewards that run in their own processes."""
    return [reward.name for reward in job.spec.rewards if reward.placement is RewardPlacement.OWN]


def critic_rewards(job: AlignmentJob) -> list[Reward]:
    """Return the reward models that run in the critic's process."""
    return [reward for reward in job.spec.rewards if reward.placement is RewardPlacement.WITH_CRITIC]


async def build_source(
    context: JobContext,
    state: JobState,
    frozen_models: FrozenModels,
    colocated: ColocatedScorer,
    prefetchers: Sequence[ForwardPrefetcher],
    stack: AsyncExitStack,
) -> BatchSource:
    """Create the batch source, continuing from `state`: rows of a data set, or groups sampled from the
    policy.
    """
    job, prepared = context.job, context.prepared
    algorithm = job.spec.algorithm.value
    prompts: TrainingPrompts
    rows: Sequence[PreparedRow] | Mapping[int, PreparedRow]
    if job.spec.data.value.streaming is None:
        prompts, rows = _build_epoch_prompts(context, state), prepared.train
    else:
        prompts = await _build_streamed_prompts(context, state, stack)
        rows = prompts.rows
    curriculum = prompts.curriculum
    dropped_rows = prepared.report.train.dropped
    if not algorithm.online:
        batches = RowBatches(rows, job.spec.data.member, algorithm.mismatched)
        return RowSource(prompts, dropped_rows, algorithm.rows_per_step, batches, context.stop, frozen_models)
    rollout = job.spec.effective_rollout
    assert rollout is not None
    distribution = algorithm.teacher_distribution
    scorers = SampleScorers(
        job.spec.rewards,
        bus_rewards(job),
        _bus_reference(job),
        colocated,
        None if distribution is None else distribution.temperature,
    )
    plan = replace(
        build_group_plan(job, rollout, algorithm.prompts_per_step, algorithm.samples_per_prompt),
        max_staleness=algorithm.max_staleness,
        greedy_samples=int(algorithm.greedy_baseline),
        reference_samples=int(algorithm.reference_sample),
        # The groups of a step are requested at once, and those of later steps ahead of time.
        window=None,
    )
    overlap = job.spec.effective_overlap
    batch_scoring, groups = None, group_sources(job)
    if not overlap.score_on_arrival:
        batch_scoring = BatchScoring(context.collector, scorers.bus_sources, overlap.parallel_scoring, groups)
    buffer = GroupBuffer(
        context.collector,
        prompts,
        plan,
        TRAINING,
        scorers.bus_sources,
        GroupBufferOptions(
            failure_count=len(state.given_up),
            dynamic_sampling=_build_dynamic_sampling(job),
            batch_scoring=batch_scoring,
            on_drop=None if curriculum is None else curriculum.measure_dropped,
            group_sources=groups,
        ),
    )
    return GroupSource(
        prompts,
        dropped_rows,
        buffer,
        scorers,
        SamplingInfo(
            rollout.sampling.temperature or 1.0,
            rollout.sampling.max_tokens,
            plan.auxiliary_samples,
            job.spec.in_flight is InFlightPolicy.CONTINUE,
        ),
        prefetchers,
    )


def _build_epoch_prompts(context: JobContext, state: JobState) -> EpochPrompts:
    """Create the source of the prepared rows."""
    job, prepared = context.job, context.prepared
    algorithm = job.spec.algorithm.value
    max_epochs = None if algorithm.online else algorithm.max_epochs
    order = build_row_order(job.spec.data.value, prepared.report.train, job.spec.seed)
    curriculum = _build_curriculum(context, state, order)
    return EpochPrompts(prepared.train, order, state.cursor, state.unfinished, max_epochs, curriculum)


async def _build_streamed_prompts(
    context: JobContext, state: JobState, stack: AsyncExitStack
) -> StreamedPrompts:
    """Create the source of streamed rows. Raises UnrecoverableError if their files have changed."""
    job, prepared = context.job, context.prepared
    stream_state = state.stream or StreamState()

    def check(train: DatasetReport) -> None:
        report = prepared.report.model_copy(update={"train": train})
        check_payload_limits(job, report, context.max_payload, read_routing_record_bytes(context.run_dir))

    # Reads the tokenizer and the ends of all files.
    opening = asyncio.create_task(asyncio.to_thread(open_stream, job, prepared, state.cursor, stream_state))
    stream = await wait_for_read(opening, prepared.report.train.source)
    prompts = StreamedPrompts(stream, state.cursor, stream_state, state.unfinished, check)
    stack.push_async_callback(prompts.close)
    return prompts


def build_colocated_scorer(context: JobContext) -> ColocatedScorer:
    """Create the client of the reward models and the reference that trainer and critic host."""
    job = context.job
    reference: ForwardCall | None = None
    if job.spec.effective_reference is not None and not _has_reference_workers(job):
        reference = context.trainer.reference_logprobs
        if job.spec.hint is not None:
            reference = partial(score_hinted, reference, TeacherPrompts(context.prepared.train))
    parallel = job.spec.effective_overlap.parallel_scoring
    rewards, train = critic_rewards(job), context.prepared.report.train
    sources = {reward.name: find_reward_sources(job.spec, train, reward) for reward in rewards}
    return ColocatedScorer(
        context.critic,
        [reward.name for reward in rewards],
        reference,
        parallel,
        {name: prompts for name, prompts in sources.items() if prompts is not None},
    )


def build_prefetchers(
    job: AlignmentJob, old_logprobs: OldLogprobs, critic_values: CriticValues, colocated: ColocatedScorer
) -> list[ForwardPrefetcher]:
    """Return the prefetchers of what trainer and critic compute of a batch.

    Prefetching makes the last bits of the results depend on the arrival order of samples; see
    `rollout.scoring` in the spec. The trainer is not asked where that would take the accelerator from the
    engine.
    """
    rollout = job.spec.effective_rollout
    if rollout is None or not _scores_on_arrival(job, rollout):
        return []
    prefetchers = [critic_values.prefetcher, colocated.reward_prefetcher]
    if rollout.placement is RolloutPlacement.OWN:
        prefetchers += [old_logprobs.prefetcher, colocated.reference_prefetcher]
    return [prefetcher for prefetcher in prefetchers if prefetcher is not None]


def _scores_on_arrival(job: AlignmentJob, rollout: Rollout) -> bool:
    """Return True if finished groups are scored while others are still generated."""
    if job.spec.checkpoint.record_batches or not job.spec.effective_overlap.score_on_arrival:
        return False
    if rollout.scoring is not None:
        return rollout.scoring is SampleScoring.ON_ARRIVAL
    spec = job.spec
    has_frozen_model = bool(spec.teachers) or spec.effective_reference is not None
    return has_frozen_model or any(reward.models for reward in spec.rewards)


def _has_reference_workers(job: AlignmentJob) -> bool:
    """Return True if the reference model runs in its own processes."""
    reference = job.spec.effective_reference
    return reference is not None and reference.placement is ReferencePlacement.OWN


def build_validation(
    context: JobContext,
    weight_sync: WeightSync,
    report: MetricsReport,
    training_algorithm: Algorithm,
    frozen_models: FrozenModels,
) -> ValidationSchedule:
    """Create the measurements on held-out rows that the spec asks for."""

    def held_out_loss(rows: HeldOutRows, prepared: PreparedRows) -> HeldOutLoss:
        batches = RowBatches(prepared, rows.data.member, context.job.spec.algorithm.value.mismatched)
        return HeldOutLoss(
            context.trainer,
            training_algorithm,
            prepared,
            batches,
            frozen_models,
            rows.group_by,
            rows.metric_prefix,
        )

    return build_measurements(context, weight_sync.ensure_published, report, held_out_loss)


def build_measurements(
    context: ValidationContext,
    ensure_published: Callable[[int], Awaitable[None]],
    report: MetricsReport,
    held_out_loss: Callable[[HeldOutRows, PreparedRows], HeldOutLoss] | None = None,
    saved: Mapping[str | None, SavedGroups] | None = None,
) -> ValidationSchedule:
    """Create the measurements on held-out rows that the spec asks for.

    Args:
        ensure_published: Waits until the rollout workers have a version.
        held_out_loss: Creates the measurement of the loss; None: there is no trainer.
        saved: Name of a validation set, None for the rows of validation.data -> responses of an interrupted
            measurement; None: a measurement begins anew.
    """
    scheduled = [
        _build_scheduled_rows(
            context,
            rows,
            prepared,
            ensure_published,
            report,
            held_out_loss,
            None if saved is None else saved[rows.name],
        )
        for rows in context.job.spec.held_out_rows
        if (prepared := context.prepared.held_out(rows.name)) is not None
    ]
    spec = context.job.spec
    return ValidationSchedule(spec.validation, scheduled, report, spec.checkpoint.keep_best)


def _build_scheduled_rows(
    context: ValidationContext,
    rows: HeldOutRows,
    prepared: PreparedRows,
    ensure_published: Callable[[int], Awaitable[None]],
    report: MetricsReport,
    held_out_loss: Callable[[HeldOutRows, PreparedRows], HeldOutLoss] | None,
    saved: SavedGroups | None,
) -> ScheduledRows:
    """Create the measurements of a set of held-out rows."""
    job, previews = context.job, context.previews
    measurements: list[Measurement] = []
    names: dict[str, str] = {}
    initial_policy: InitialPolicyResponses | None = None
    algorithm = job.spec.algorithm.value
    if held_out_loss is not None and not algorithm.samples and rows.data.member == algorithm.data:
        measurements.append(held_out_loss(rows, prepared))
    sampling = rows.sampling or (ValidationSampling() if algorithm.samples else None)
    if sampling is not None:
        purpose = validation_purpose(rows.name)

        def show(state: JobState, samples: Sequence[ValidationSample]) -> None:
            report.write_samples(
                state.step, previews.from_responses(samples, state.step, state.version, purpose)
            )
            report.write_validation_samples(state.step, previews.of_validation(samples, rows.name or ""))

        names = {
            reward.name: f"{rows.metric_prefix}reward/{reward.name}"
            for reward in job.spec.rewards
            if rows.is_scored_by(reward)
        }
        names |= rows.score_metrics()
        folder = context.run_dir / "validation"
        folder = folder if rows.name is None else folder / rows.name
        compared: Sequence[PreparedRow] = prepared
        if sampling.initial_policy_column is not None:
            initial_policy = _build_initial_policy(
                context, rows, prepared, sampling, ensure_published, folder
            )
            compared = RowsWithInitialPolicy(prepared, sampling.initial_policy_column, initial_policy)
        sampler = _build_validation_sampler(context, rows, compared, sampling, ensure_published, saved)
        measurements.append(
            SampledResponses(
                sampler,
                names,
                rows.group_by,
                folder,
                show,
                SummaryOptions.of_spec(sampling),
                rows.metric_prefix,
                initial_policy,
            )
        )
    return ScheduledRows(rows, measurements, names.values(), initial_policy)


def _build_initial_policy(
    context: ValidationContext,
    rows: HeldOutRows,
    prepared: PreparedRows,
    sampling: ValidationSampling,
    ensure_published: Callable[[int], Awaitable[None]],
    folder: Path,
) -> InitialPolicyResponses:
    """Create the responses of the initial policy to held-out prompts, sampled as those of the validation."""
    job, collector = context.job, context.collector
    rollout = job.spec.effective_rollout
    assert rollout is not None
    parameters = validation_sampling(rollout.sampling, sampling)
    plan = build_group_plan(job, rollout, len(prepared), 1, parameters)
    sampler = InitialPolicySampler(collector, prepared, plan, ensure_published, rows.name)
    # The first model of an evaluation has whatever step the spec gives it.
    first_step = None if job.spec.algorithm.evaluate is not None else read_first_step(context.run_dir)
    return InitialPolicyResponses(sampler, folder, Fence(context.run_dir, collector.fence), first_step)


def _build_validation_sampler(
    context: ValidationContext,
    rows: HeldOutRows,
    prepared: Sequence[PreparedRow],
    sampling: ValidationSampling,
    ensure_published: Callable[[int], Awaitable[None]],
    saved: SavedGroups | None,
) -> ValidationSampler:
    """Create the sampler of responses to held-out prompts."""
    job = context.job
    rollout = job.spec.effective_rollout
    assert rollout is not None
    rewards = [reward for reward in job.spec.rewards if rows.is_scored_by(reward)]
    on_bus = [reward.name for reward in rewards if reward.placement is RewardPlacement.OWN]
    return ValidationSampler(
        context.collector,
        prepared,
        build_group_plan(
            job,
            rollout,
            len(prepared),
            sampling.samples_per_prompt,
            validation_sampling(rollout.sampling, sampling),
        ),
        ValidationScorers(
            (*on_bus, *(score.name for score in rows.scores)),
            context.critic,
            [reward for reward in rewards if reward.placement is RewardPlacement.WITH_CRITIC],
            group_sources(job),
        ),
        ensure_published,
        rows.name,
        saved,
    )


def validation_sampling(training: SamplingSpec, validation: ValidationSampling) -> SamplingSpec:
    """Return the sampling parameters of a validation: its own, else those of the training."""
    own = {name: getattr(validation, name) for name in ("temperature", "top_k", "top_p", "max_tokens")}
    return training.model_copy(update={name: value for name, value in own.items() if value is not None})


def _build_dynamic_sampling(job: AlignmentJob) -> DynamicSamplingFilter | None:
    """Create the dynamic sampling filter, or None if the algorithm has none."""
    algorithm = job.spec.algorithm.value
    entry = getattr(algorithm, "dynamic_sampling", None)
    if entry is None:
        return None
    max_dropped = entry.max_refills * algorithm.prompts_per_step
    return DynamicSamplingFilter(job.spec.rewards, max_dropped, entry.by)


def _build_curriculum(context: JobContext, state: JobState, order: RowOrder) -> Curriculum | None:
    """Create the curriculum of the prompts as of `state`, or None if the job has none."""
    spec = context.job.spec
    entry = None if spec.data.prompts is None else spec.data.prompts.curriculum
    if entry is None:
        return None
    return Curriculum(
        entry, MeanReward(spec.rewards, entry.by), order, spec.seed, state, context.history.read()
    )


def _bus_reference(job: AlignmentJob) -> str | None:
    """Return the source of the reference log-probabilities of samples on the bus: the reference, or several
    teachers without a distribution, each for its own prompts; None: they do not come from the bus.
    """
    if job.spec.teachers and job.spec.algorithm.value.teacher_distribution is None:
        return TEACHER
    return REFERENCE if _has_reference_workers(job) else None


def build_frozen_models(context: JobContext) -> FrozenModels:
    """Create the reference or teacher client of a job that trains on given rows, with its cache."""
    spec, collector, folder = context.job.spec, context.collector, context.run_dir / "frozen"
    reference = spec.effective_reference
    distribution = spec.algorithm.value.teacher_distribution
    if distribution is not None and not spec.algorithm.value.samples:
        rollout = spec.rollout
        scores = RowScorer(collector, [TEACHER], rollout.group_timeout_seconds, rollout.group_retries)
        cache = FrozenScoreCache(folder, TEACHER, collector.fence)
        return FrozenTeacher(scores, cache, distribution.temperature)
    if reference is None or spec.algorithm.value.samples:
        return NoFrozenModels()
    request_logprobs: LogprobsRequest = context.trainer.reference_logprobs
    if reference.placement is ReferencePlacement.OWN:
        rollout = spec.rollout
        request_logprobs = request_over_bus(
            RowScorer(collector, [REFERENCE], rollout.group_timeout_seconds, rollout.group_retries)
        )
    return FrozenReference(request_logprobs, FrozenScoreCache(folder, REFERENCE, collector.fence))


def build_group_plan(
    job: AlignmentJob, rollout: Rollout, prompts: int, samples: int, sampling: SamplingSpec | None = None
) -> GroupPlan:
    """Return the plan to take `prompts` groups at a time, each of `samples` responses, requested in the job's
    window.

    Args:
        sampling: Sampling parameters; None: those of the rollout.
    """
    return GroupPlan(
        job_seed=job.spec.seed,
        prompts_per_step=prompts,
        samples_per_prompt=samples,
        sampling=to_sampling_proto(sampling or rollout.sampling),
        group_timeout=rollout.group_timeout_seconds,
        group_retries=rollout.group_retries,
        max_failed_groups=job.spec.lifecycle.max_failed_groups,
        window=request_window(job),
    )
