"""Builds the batch source of an iterative algorithm from a job's spec."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kubealign.spec.algorithms import Judge
from kubealign.spec.job import AlignmentJob
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.algorithms.rounds import RoundAlgorithm
from kubealign_services.data.prepared import Prepared
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.plans import group_plan
from kubealign_services.driver.previews import Previews
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.rounds.files import RoundFiles
from kubealign_services.driver.rounds.judging import PolicyJudge
from kubealign_services.driver.rounds.making import RoundMaker, RoundPlan
from kubealign_services.driver.rounds.questions import Questions
from kubealign_services.driver.rounds.source import RoundSource
from kubealign_services.driver.state import JobState
from kubealign_services.driver.supply import EpochSupply
from kubealign_services.driver.training_client import TrainerClient
from kubealign_services.driver.validation_figures import ValidationSample
from kubealign_services.driver.weights import OnDemand


def build_rounds(
    job: AlignmentJob,
    prepared: Prepared,
    exchange: Exchange,
    trainer: TrainerClient,
    weights: OnDemand,
    algorithm: Algorithm,
    previews: Previews,
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

    def supply(state: JobState) -> EpochSupply:
        return EpochSupply(prepared.train, spec.seed, spec.data.value.shuffle, state.cursor, state.unfinished)

    def show(step: StepFigures, answers: Sequence[ValidationSample], version: int) -> None:
        step.samples = previews.of_answers(answers, step.step, version, "train")

    maker = RoundMaker(
        RoundPlan(
            groups=group_plan(job, rollout, entry.prompts_per_round, entry.samples_per_prompt),
            rewards=spec.rewards,
            sequences_per_pass=entry.rows_per_step * unit,
            gap=rollout.mismatch_gate.mean,
            dropped=prepared.report.train.dropped,
        ),
        round_algorithm,
        unit,
        files,
        exchange,
        trainer,
        supply,
        weights.digest,
        None if entry.judged_by is None else _judge(job, entry.judged_by, prepared, exchange),
        show,
    )
    return RoundSource(
        maker, files, entry.rounds, entry.rows_per_step, entry.epochs_per_round, spec.seed, stop
    )


def _judge(job: AlignmentJob, judge: Judge, prepared: Prepared, exchange: Exchange) -> PolicyJudge:
    """Create the judge of an algorithm whose policy scores its own responses."""
    rollout, chat = job.spec.effective_rollout, job.spec.data.value.format.chat
    assert rollout is not None
    context = prepared.report.context
    max_prompt_tokens = None if context is None else context - judge.max_tokens
    if max_prompt_tokens is not None and max_prompt_tokens < 1:
        raise JobFailed(
            f"judge.maxTokens ({judge.max_tokens}) leaves no room for a question: the context is {context} "
            "tokens"
        )
    plan = group_plan(job, rollout, 1, judge.samples, judge.temperature)
    plan.sampling.max_tokens = judge.max_tokens
    plan.sampling.min_tokens = min(plan.sampling.min_tokens, judge.max_tokens)
    questions = Questions(judge.prompt, prepared.tokenizer, None if chat is None else chat.messages)
    return PolicyJudge(exchange, questions, plan, judge, max_prompt_tokens)
