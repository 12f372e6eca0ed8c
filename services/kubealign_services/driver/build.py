"""Builds the objects of the training loop from a job's spec and its prepared data."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from kubealign.spec.job import AlignmentJob
from kubealign.spec.rewards import RewardPlacement
from kubealign.spec.rollout import InFlight, ReferencePlacement, RolloutPlacement
from kubealign.spec.validation import ValidationSampling
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.loading import make_algorithm
from kubealign_services.bus.contract import Bus
from kubealign_services.data.prepared import Prepared
from kubealign_services.driver.ahead import Ahead
from kubealign_services.driver.assembly import REFERENCE, Sampled
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.groups import GroupBuffer
from kubealign_services.driver.informative import DynamicSampling
from kubealign_services.driver.members import Colocated, Policy, Values
from kubealign_services.driver.plans import group_plan
from kubealign_services.driver.previews import Previews
from kubealign_services.driver.report import Report
from kubealign_services.driver.row_batches import RowBatches
from kubealign_services.driver.snapshots import Snapshots
from kubealign_services.driver.source import FrozenModels, GroupSource, RowSource, Source
from kubealign_services.driver.state import JobState
from kubealign_services.driver.supply import EpochSupply
from kubealign_services.driver.training_client import CriticClient, TrainerClient
from kubealign_services.driver.validation import HeldOutLoss, Measurement, SampledAnswers, Validation
from kubealign_services.driver.validation_figures import ValidationSample
from kubealign_services.driver.validation_sampling import ValidationSampler
from kubealign_services.driver.weights import Behind, EveryStep, NoWeights, OnDemand, Weights
from kubealign_services.refit.broadcast import WeightsBroadcast


def build_algorithm(job: AlignmentJob) -> Algorithm:
    """Create the algorithm that the spec names. Raises LookupError if it is not installed."""
    return make_algorithm(job.spec.algorithm)


async def build_weights(
    job: AlignmentJob, bus: Bus, trainer: TrainerClient, stack: AsyncExitStack
) -> Weights:
    """Choose how rollout workers get new weights: after each step, asynchronously, on demand or not at all.
    """
    rollout = job.spec.effective_rollout
    if rollout is None:
        return NoWeights()
    snapshots = Snapshots(trainer.publish_weights)
    broadcast = await stack.enter_async_context(
        WeightsBroadcast(
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
        return OnDemand(broadcast)
    return Behind(broadcast, snapshots) if algorithm.max_staleness else EveryStep(broadcast)


def bus_rewards(job: AlignmentJob) -> list[str]:
    """Return the names of the rewards that run in their own processes."""
    return [reward.name for reward in job.spec.rewards if reward.placement is RewardPlacement.OWN]


def critic_rewards(job: AlignmentJob) -> list[str]:
    """Return the names of the reward models that run in the critic's process."""
    return [reward.name for reward in job.spec.rewards if reward.placement is RewardPlacement.WITH_CRITIC]


def build_source(
    job: AlignmentJob,
    prepared: Prepared,
    state: JobState,
    exchange: Exchange,
    trainer: TrainerClient,
    critic: CriticClient | None,
    stop: asyncio.Event,
    frozen: FrozenModels,
    ahead: Sequence[Ahead],
) -> Source:
    """Create the batch source, continuing from `state`: rows of a data set, or groups sampled from the
    policy.
    """
    algorithm = job.spec.algorithm.value
    data = job.spec.data.value
    max_epochs = None if algorithm.online else algorithm.max_epochs
    supply = EpochSupply(
        prepared.train, job.spec.seed, data.shuffle, state.cursor, state.unfinished, max_epochs
    )
    dropped = prepared.report.train.dropped
    if not algorithm.online:
        batches = RowBatches(prepared.train, job.spec.data.member, algorithm.mismatched)
        return RowSource(supply, dropped, algorithm.rows_per_step, batches, stop, frozen)
    rollout = job.spec.effective_rollout
    assert rollout is not None
    on_bus = _reference_on_bus(job)
    rewards = bus_rewards(job)
    plan = replace(
        group_plan(job, rollout, algorithm.prompts_per_step, algorithm.samples_per_prompt),
        max_staleness=algorithm.max_staleness,
        greedy_samples=int(algorithm.greedy_baseline),
    )
    buffer = GroupBuffer(
        exchange,
        supply,
        plan,
        "train",
        (*rewards, *((REFERENCE,) if on_bus else ())),
        failures=len(state.given_up),
        dynamic=_dynamic(job),
    )
    return GroupSource(
        supply,
        dropped,
        buffer,
        job.spec.rewards,
        rewards,
        on_bus,
        Colocated(
            trainer, critic, critic_rewards(job), job.spec.effective_reference is not None and not on_bus
        ),
        Sampled(
            rollout.sampling.temperature or 1.0,
            rollout.sampling.max_tokens,
            plan.greedy_samples,
            job.spec.in_flight is InFlight.CONTINUE,
        ),
        ahead,
    )


def asked_ahead(job: AlignmentJob, policy: Policy, values: Values) -> list[Ahead]:
    """Return the prefetchers of old log-probabilities and values.

    Prefetching makes the last bits of the results depend on the arrival order of samples. It is therefore
    off where all models see whole batches, because such a job repeats bit for bit, and where batches are
    recorded, because a replay must repeat bit for bit. The trainer is not asked where that would take the
    accelerator from the engine.
    """
    if job.spec.checkpoint.record_batches or not _scored_as_they_come(job):
        return []
    rollout = job.spec.effective_rollout
    has_own_processes = rollout is not None and rollout.placement is RolloutPlacement.OWN
    prefetchers = [values.ahead, policy.ahead if has_own_processes else None]
    return [prefetcher for prefetcher in prefetchers if prefetcher is not None]


def _scored_as_they_come(job: AlignmentJob) -> bool:
    """Return True if a model in its own process scores samples, in batches that depend on their arrival."""
    own_process_rewards = [reward for reward in job.spec.rewards if reward.placement is RewardPlacement.OWN]
    return _reference_on_bus(job) or any(reward.models for reward in own_process_rewards)


def _reference_on_bus(job: AlignmentJob) -> bool:
    """Return True if the reference model runs in its own processes."""
    reference = job.spec.effective_reference
    return reference is not None and reference.placement is ReferencePlacement.OWN


def build_validation(
    job: AlignmentJob,
    prepared: Prepared,
    exchange: Exchange,
    trainer: TrainerClient,
    critic: CriticClient | None,
    weights: Weights,
    report: Report,
    previews: Previews,
    folder: Path,
    chosen: Algorithm,
    frozen: FrozenModels,
) -> Validation:
    """Create the measurements on held-out rows that the spec asks for."""
    spec = job.spec.validation
    if spec is None or prepared.validation is None:
        return Validation(None, [], report)
    measurements: list[Measurement] = []
    algorithm = job.spec.algorithm.value
    if not algorithm.samples and spec.data.member == algorithm.data:
        batches = RowBatches(prepared.validation, spec.data.member, algorithm.mismatched)
        measurements.append(HeldOutLoss(trainer, chosen, prepared.validation, batches, frozen, spec.group_by))
    sampling = spec.sampling or (ValidationSampling() if algorithm.samples else None)
    if sampling is not None:

        def show(state: JobState, samples: Sequence[ValidationSample]) -> None:
            report.samples(state.step, previews.of_answers(samples, state.step, state.version))

        sampler = _sampler(job, sampling, prepared, exchange, critic, weights.ensure)
        names = {reward.name: f"val/reward/{reward.name}" for reward in job.spec.rewards}
        names |= {score.name: f"val/{score.name}" for score in sampling.scores}
        measurements.append(SampledAnswers(sampler, names, spec.group_by, folder, show))
    return Validation(spec, measurements, report)


def _sampler(
    job: AlignmentJob,
    sampling: ValidationSampling,
    prepared: Prepared,
    exchange: Exchange,
    critic: CriticClient | None,
    ensure: Callable[[int], Awaitable[None]],
) -> ValidationSampler:
    """Create the sampler of responses to the held-out prompts."""
    rollout = job.spec.effective_rollout
    assert rollout is not None and prepared.validation is not None
    rewards = bus_rewards(job)
    return ValidationSampler(
        exchange,
        prepared.validation,
        group_plan(job, rollout, len(prepared.validation), sampling.samples_per_prompt, sampling.temperature),
        sources=(*rewards, *(score.name for score in sampling.scores)),
        critic=critic,
        critic_rewards=critic_rewards(job),
        ensure=ensure,
    )


def _dynamic(job: AlignmentJob) -> DynamicSampling | None:
    """Create the dynamic sampling filter, or None if the algorithm has none."""
    algorithm = job.spec.algorithm.value
    entry = getattr(algorithm, "dynamic_sampling", None)
    if entry is None:
        return None
    return DynamicSampling(job.spec.rewards, entry.max_refills * algorithm.prompts_per_step)
