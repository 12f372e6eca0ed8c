"""Builds the row maker of a job that generates data, from its spec and prepared data."""

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.roles.driver.builder import build_group_plan, bus_rewards
from kubealign_services.roles.driver.data_generation.annotation import RowAnnotator
from kubealign_services.roles.driver.data_generation.comparison import PairwiseComparator
from kubealign_services.roles.driver.data_generation.critique_revision import CritiqueReviser
from kubealign_services.roles.driver.data_generation.generation import (
    RowGenerator,
    RowSelector,
    SampleScorer,
    SampleStage,
)
from kubealign_services.roles.driver.data_generation.loop import RowMaker
from kubealign_services.roles.driver.data_generation.requests import PromptRenderer, RequestClient
from kubealign_services.roles.driver.data_generation.row_format import RowFormatter
from kubealign_services.roles.driver.data_generation.samples import SampleMetrics
from kubealign_services.roles.driver.data_generation.selection import RewardSelector
from kubealign_services.roles.driver.frozen_models.scores import RowScorer
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.scoring.group_requests import group_sources


def rows_per_step(job: AlignmentJob) -> int:
    """Return the number of data rows that one step takes."""
    algorithm = job.spec.algorithm.value
    return int(algorithm.prompts_per_step if algorithm.samples else algorithm.rows_per_step)


def build_row_maker(job: AlignmentJob, prepared: PreparedJob, collector: RolloutCollector) -> RowMaker:
    """Create the row maker that the spec asks for."""
    if job.spec.algorithm.value.samples:
        return _build_generator(job, prepared, collector)
    return _build_annotator(job, prepared, collector)


def _build_annotator(job: AlignmentJob, prepared: PreparedJob, collector: RolloutCollector) -> RowAnnotator:
    """Create the maker that adds scores to given rows."""
    spec, data = job.spec, job.spec.data.demonstrations
    assert data is not None
    timeout, retries = spec.rollout.group_timeout_seconds, spec.rollout.group_retries
    return RowAnnotator(
        rows=prepared.train,
        data=data,
        entry=spec.algorithm.value,
        rewards=spec.rewards,
        scores=RowScorer(collector, bus_rewards(job), timeout, retries),
        previews=SamplePreviews.of_job(spec, prepared),
    )


def _build_generator(job: AlignmentJob, prepared: PreparedJob, collector: RolloutCollector) -> RowGenerator:
    """Create the maker that samples, revises, scores and selects responses."""
    spec, data, algorithm = job.spec, job.spec.data.prompts, job.spec.algorithm.value
    rollout = spec.effective_rollout
    assert rollout is not None and data is not None
    plan = build_group_plan(job, rollout, algorithm.prompts_per_step, algorithm.samples_per_prompt)
    client, row_formatter = RequestClient(collector, plan, group_sources(job)), RowFormatter(data)
    rewards, sources = spec.rewards, bus_rewards(job)
    stages: list[SampleStage] = []
    if algorithm.revise is not None:
        longest = rollout.sampling.max_tokens
        renderer = _build_prompt_renderer(prepared, row_formatter)
        stages.append(CritiqueReviser(algorithm.revise, client, renderer, longest, row_formatter, spec.seed))
        if rewards:
            timeout, retries = rollout.group_timeout_seconds, rollout.group_retries
            stages.append(SampleScorer(rewards, RowScorer(collector, sources, timeout, retries)))
    selector: RowSelector = RewardSelector(algorithm.keep, row_formatter)
    if algorithm.compare is not None:
        renderer = _build_prompt_renderer(prepared, row_formatter)
        selector = PairwiseComparator(algorithm.compare, client, renderer, row_formatter, spec.seed)
    return RowGenerator(
        rows=prepared.train,
        client=client,
        samples_per_prompt=algorithm.samples_per_prompt,
        rewards=rewards,
        sources=() if stages else sources,
        stages=stages,
        selector=selector,
        metrics=SampleMetrics(SamplePreviews.of_job(spec, prepared)),
    )


def _build_prompt_renderer(prepared: PreparedJob, form: RowFormatter) -> PromptRenderer:
    """Create the renderer of the job's own prompts."""
    return PromptRenderer(prepared.tokenizer, form.chat, prepared.report.context)
