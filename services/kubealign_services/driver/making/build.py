"""Builds the row maker of a job that generates data, from its spec and prepared data."""

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared import Prepared
from kubealign_services.driver.build import bus_rewards
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.making.annotation import Annotation
from kubealign_services.driver.making.asking import Asking
from kubealign_services.driver.making.comparison import Comparing
from kubealign_services.driver.making.figures import Figures
from kubealign_services.driver.making.form import Form
from kubealign_services.driver.making.generation import Choice, Generation, Stage
from kubealign_services.driver.making.keeping import Keeping
from kubealign_services.driver.making.maker import RowMaker
from kubealign_services.driver.making.prompts import Prompts
from kubealign_services.driver.making.revision import Revising
from kubealign_services.driver.making.scoring import Scoring
from kubealign_services.driver.plans import group_plan
from kubealign_services.driver.previews import Previews
from kubealign_services.driver.row_scores import RowScores
from kubealign_services.driver.token_texts import TokenTexts, decoder


def rows_per_step(job: AlignmentJob) -> int:
    """Return the number of data rows that one step takes."""
    algorithm = job.spec.algorithm.value
    return int(algorithm.prompts_per_step if algorithm.samples else algorithm.rows_per_step)


def build_maker(job: AlignmentJob, prepared: Prepared, exchange: Exchange) -> RowMaker:
    """Create the row maker that the spec asks for."""
    if job.spec.algorithm.value.samples:
        return _generation(job, prepared, exchange)
    return _annotation(job, prepared, exchange)


def _annotation(job: AlignmentJob, prepared: Prepared, exchange: Exchange) -> Annotation:
    """Create the maker that adds scores to given rows."""
    spec, data = job.spec, job.spec.data.demonstrations
    assert data is not None
    timeout, retries = spec.rollout.group_timeout_seconds, spec.rollout.group_retries
    return Annotation(
        rows=prepared.train,
        data=data,
        entry=spec.algorithm.value,
        rewards=spec.rewards,
        scores=RowScores(exchange, bus_rewards(job), timeout, retries),
        previews=Previews(TokenTexts(lambda: decoder(prepared.tokenizer)), spec.seed),
    )


def _generation(job: AlignmentJob, prepared: Prepared, exchange: Exchange) -> Generation:
    """Create the maker that samples, revises, scores and selects responses."""
    spec, data, algorithm = job.spec, job.spec.data.prompts, job.spec.algorithm.value
    rollout = spec.effective_rollout
    assert rollout is not None and data is not None
    plan = group_plan(job, rollout, algorithm.prompts_per_step, algorithm.samples_per_prompt)
    client, row_formatter = Asking(exchange, plan), Form(data)
    rewards, sources = spec.rewards, bus_rewards(job)
    stages: list[Stage] = []
    if algorithm.revise is not None:
        longest = rollout.sampling.max_tokens
        renderer = _prompts(prepared, row_formatter)
        stages.append(Revising(algorithm.revise, client, renderer, longest, row_formatter, spec.seed))
        if rewards:
            timeout, retries = rollout.group_timeout_seconds, rollout.group_retries
            stages.append(Scoring(rewards, RowScores(exchange, sources, timeout, retries)))
    selector: Choice = Keeping(algorithm.keep, row_formatter)
    if algorithm.compare is not None:
        renderer = _prompts(prepared, row_formatter)
        selector = Comparing(algorithm.compare, client, renderer, row_formatter, spec.seed)
    return Generation(
        rows=prepared.train,
        asking=client,
        samples_per_prompt=algorithm.samples_per_prompt,
        rewards=rewards,
        sources=() if stages else sources,
        stages=stages,
        choice=selector,
        figures=Figures(Previews(TokenTexts(lambda: decoder(prepared.tokenizer)), spec.seed)),
    )


def _prompts(prepared: Prepared, form: Form) -> Prompts:
    """Create the renderer of the job's own prompts."""
    return Prompts(prepared.tokenizer, form.chat, prepared.report.context)
