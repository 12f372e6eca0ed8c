"""Builds the batch source of an iterative algorithm from a job's spec."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kubealign.spec.algorithms import Judge
from kubealign.spec.job import AlignmentJob
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.iterative.rounds import RoundAlgorithm
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.roles.driver.builder import build_group_plan
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts
from kubealign_services.roles.driver.sources.iterative.judge_prompts import JudgePrompts
from kubealign_services.roles.driver.sources.iterative.llm_judge import PolicyJudge
from kubealign_services.roles.driver.sources.iterative.round_files import RoundFiles
from kubealign_services.roles.driver.sources.iterative.round_maker import RoundMaker, RoundPlan
from kubealign_services.roles.driver.sources.iterative.source import RoundSource
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.trainer_client import TrainerClient
from kubealign_services.roles.driver.validation.metrics import ValidationSample
from kubealign_services.roles.driver.weight_sync import SyncOnDemand


def build_round_source(
    job: AlignmentJob,
    prepared: PreparedJob,
    collector: RolloutCollector,
    trainer: TrainerClient,
    weight_sync: SyncOnDemand,
    algorithm: Algorithm,
    previews: SamplePreviews,
    run_dir: Path,
    stop: asyncio.Event,
) -> RoundSource:
    """Create the batch source of an iterative algorithm. Raises UnrecoverableError if the judge has no room
    in the context.
    """
    spec, entry, rollout = job.spec, job.spec.algorithm.value, job.spec.effective_rollout
    assert rollout is not None
    round_algorithm = cast(RoundAlgorithm, algorithm)
    unit = round_algorithm.policy_objective().unit
    files = RoundFiles(run_dir)

    def supply(state: JobState) -> EpochPrompts:
        return EpochPrompts(
            prepared.train, spec.seed, spec.data.value.shuffle, state.cursor, state.unfinished
        )

    def show(step: StepRecord, answers: Sequence[ValidationSample], version: int) -> None:
        step.previews = previews.from_responses(answers, step.step, version, "train")

    maker = RoundMaker(
        RoundPlan(
            groups=build_group_plan(job, rollout, entry.prompts_per_round, entry.samples_per_prompt),
            rewards=spec.rewards,
            sequences_per_pass=entry.rows_per_step * unit,
            max_logprob_gap=rollout.mismatch_gate.mean,
            dropped_rows=prepared.report.train.dropped,
        ),
        round_algorithm,
        unit,
        files,
        collector,
        trainer,
        supply,
        weight_sync.publish_and_digest,
        None if entry.judged_by is None else _build_judge(job, entry.judged_by, prepared, collector),
        show,
    )
    return RoundSource(
        maker, files, entry.rounds, entry.rows_per_step, entry.epochs_per_round, spec.seed, stop
    )


def _build_judge(
    job: AlignmentJob, judge: Judge, prepared: PreparedJob, collector: RolloutCollector
) -> PolicyJudge:
    """Create the judge of an algorithm whose policy scores its own responses."""
    rollout, chat = job.spec.effective_rollout, job.spec.data.value.format.chat
    assert rollout is not None
    context = prepared.report.context
    max_prompt_tokens = None if context is None else context - judge.max_tokens
    if max_prompt_tokens is not None and max_prompt_tokens < 1:
        raise UnrecoverableError(
            f"judge.maxTokens ({judge.max_tokens}) leaves no room for a question: the context is {context} "
            "tokens"
        )
    plan = build_group_plan(job, rollout, 1, judge.samples, judge.temperature)
    plan.sampling.max_tokens = judge.max_tokens
    plan.sampling.min_tokens = min(plan.sampling.min_tokens, judge.max_tokens)
    questions = JudgePrompts(judge.prompt, prepared.tokenizer, None if chat is None else chat.messages)
    return PolicyJudge(collector, questions, plan, judge, max_prompt_tokens)
