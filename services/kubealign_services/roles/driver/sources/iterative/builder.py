"""Builds the batch source of an iterative algorithm from a job's spec."""

from collections.abc import Sequence
from typing import cast

from kubealign.spec.algorithms import Judge
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.iterative.rounds import RoundAlgorithm
from kubealign_services.data.mixture import build_row_order
from kubealign_services.roles.driver.builder import JobContext, build_group_plan
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.logprob_gap_gate import LogprobGapGate
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.prompt_source import EpochPrompts
from kubealign_services.roles.driver.sources.iterative.judge_prompts import JudgePrompts
from kubealign_services.roles.driver.sources.iterative.llm_judge import PolicyJudge
from kubealign_services.roles.driver.sources.iterative.round_files import RoundFiles
from kubealign_services.roles.driver.sources.iterative.round_maker import RoundContext, RoundMaker, RoundPlan
from kubealign_services.roles.driver.sources.iterative.source import RoundSchedule, RoundSource
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.samples import ValidationSample
from kubealign_services.roles.driver.weight_sync import SyncOnDemand


def build_round_source(context: JobContext, weight_sync: SyncOnDemand, algorithm: Algorithm) -> RoundSource:
    """Create the batch source of an iterative algorithm.

    Raises UnrecoverableError if the judge has no room in the context.
    """
    job, prepared = context.job, context.prepared
    spec, entry, rollout = job.spec, job.spec.algorithm.value, job.spec.effective_rollout
    assert rollout is not None
    round_algorithm = cast(RoundAlgorithm, algorithm)
    unit = round_algorithm.policy_objective().unit
    files = RoundFiles(context.run_dir)

    def open_prompts(state: JobState) -> EpochPrompts:
        order = build_row_order(spec.data.value, prepared.report.train, spec.seed)
        return EpochPrompts(prepared.train, order, state.cursor, state.unfinished)

    def show(step: StepRecord, answers: Sequence[ValidationSample], version: int) -> None:
        step.previews = context.previews.from_responses(answers, step.step, version, "train")

    maker = RoundMaker(
        RoundPlan(
            groups=build_group_plan(job, rollout, entry.prompts_per_round, entry.samples_per_prompt),
            rewards=spec.rewards,
            unit=unit,
            sequences_per_pass=entry.rows_per_step * unit,
            dropped_rows=prepared.report.train.dropped,
        ),
        round_algorithm,
        RoundContext(
            files,
            context.collector,
            context.trainer,
            weight_sync.publish_and_digest,
            LogprobGapGate(rollout.mismatch_gate),
        ),
        open_prompts,
        None if entry.judged_by is None else _build_judge(context, entry.judged_by),
        show,
    )
    schedule = RoundSchedule(entry.rounds, entry.rows_per_step, entry.epochs_per_round, spec.seed)
    return RoundSource(maker, files, schedule, context.stop)


def _build_judge(context: JobContext, judge: Judge) -> PolicyJudge:
    """Create the judge of an algorithm whose policy scores its own responses."""
    job, prepared = context.job, context.prepared
    rollout, chat = job.spec.effective_rollout, job.spec.data.value.format.chat
    assert rollout is not None
    context_tokens = prepared.report.context
    max_prompt_tokens = None if context_tokens is None else context_tokens - judge.max_tokens
    if max_prompt_tokens is not None and max_prompt_tokens < 1:
        raise UnrecoverableError(
            f"judge.maxTokens ({judge.max_tokens}) leaves no room for a question: the context is "
            f"{context_tokens} tokens"
        )
    sampling = rollout.sampling.model_copy(update={"temperature": judge.temperature})
    plan = build_group_plan(job, rollout, 1, judge.samples, sampling)
    plan.sampling.max_tokens = judge.max_tokens
    plan.sampling.min_tokens = min(plan.sampling.min_tokens, judge.max_tokens)
    prompts = JudgePrompts(judge.prompt, prepared.tokenizer, chat)
    return PolicyJudge(context.collector, prompts, plan, judge, max_prompt_tokens)
