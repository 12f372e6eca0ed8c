"""Reward process: `python -m kubealign_services.roles.reward.main SETTINGS.json`."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import ValidationScore
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.roles.reward.group_scorer import GroupScorer
from kubealign_services.roles.reward.servicer import RewardServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.functions.function_pool import FunctionPool
from kubealign_services.scoring.functions.function_reward import FunctionReward, RewardError
from kubealign_services.scoring.group_requests import auxiliary_kinds
from kubealign_services.scoring.purposes import scored_purposes
from kubealign_services.scoring.result_scorer import ResultScorer
from kubealign_services.scoring.row_sources import restrict_to_sources
from kubealign_services.scoring.servers.server_scorer import ServerScorer
from kubealign_services.scoring.serving import serve_scorer
from kubealign_services.scoring.worker import MAX_PULL_COUNT


async def serve(context: ProcessContext) -> None:
    """Score rollouts until stopped."""
    spec, name = context.job.spec, str(context.settings.reward)
    for reward in spec.rewards:
        if reward.name == name:
            await _serve_reward(context, reward, scored_purposes(context.job, reward))
            return
    for score in spec.validation_scores:
        if score.name == name:
            await _serve_calls(context, score, scored_purposes(context.job, score))
            return
    names = [*(reward.name for reward in spec.rewards), *(score.name for score in spec.validation_scores)]
    raise PermanentFailure(f"the job has no reward {name}; there are {', '.join(names)}")


async def _serve_reward(context: ProcessContext, reward: Reward, purposes: frozenset[str]) -> None:
    """Score with a reward: a function, another server, or models."""
    if reward.models:
        serve_models = await context.compute(_import_model_scorer)
        await serve_models(context, reward, purposes)
    else:
        await _serve_calls(context, reward, purposes, reward.sources)


async def _serve_calls(
    context: ProcessContext,
    entry: Reward | ValidationScore,
    purposes: frozenset[str],
    sources: Sequence[str] | None = None,
) -> None:
    """Score by calls of a function or of another server."""
    async with _open_scorer(context, entry) as own:
        scorer = restrict_to_sources(own, entry.name, context.settings.name, sources)
        most_samples = MAX_PULL_COUNT
        if entry.calls_a_server:
            most_samples = 1 if entry.http is None else entry.http.samples_per_request
        elif entry.scores_groups:
            # Every message is pulled, and about one in so many is a group: others are left to other calls.
            most_samples = min(MAX_PULL_COUNT, _samples_per_prompt(context.job) + 1)
        await serve_scorer(
            context,
            f"reward-{entry.name}",
            purposes,
            scorer,
            RewardServicer(scorer),
            calls=entry.calls_in_flight,
            most_samples=most_samples,
        )


def _samples_per_prompt(job: AlignmentJob) -> int:
    """Return the number of samples of a training prompt."""
    algorithm = job.spec.algorithm.value
    return int(getattr(algorithm, "samples_per_prompt", 1)) + len(auxiliary_kinds(job))


@asynccontextmanager
async def _open_scorer(
    context: ProcessContext, entry: Reward | ValidationScore
) -> AsyncIterator[ResultScorer]:
    """Open the processes of a function, or the connections to a server.

    Raises PermanentFailure where the function cannot be called, or a credential is missing.
    """
    name, worker, failures = entry.name, context.settings.name, context.metrics.reward_failures

    def count_failure(kind: str) -> None:
        failures.labels(name, kind).inc()

    if entry.calls_a_server:
        # Functions start without the client.
        from kubealign_services.scoring.servers.factory import open_server_reward

        async with open_server_reward(entry) as server:
            yield ServerScorer(name, worker, server, entry.error_policy, count_failure)
        return
    plugin = entry.plugin if isinstance(entry, Reward) else None
    target = entry.function or plugin or entry.verifier
    assert target is not None
    make = partial(FunctionReward, target, entry.timeout_seconds, name)
    async with _running(FunctionPool(make, entry.calls_in_flight)) as function:
        if entry.scores_groups:
            auxiliary = auxiliary_kinds(context.job)
            yield GroupScorer(name, worker, function, entry.error_policy, count_failure, auxiliary)
            return
        if isinstance(entry, Reward) and entry.steps is not None:
            make_scorer = await context.compute(_import_step_scorer, context, entry.steps.separator)
            yield make_scorer(name, worker, function, entry.error_policy, count_failure)
            return
        is_verifier = entry.verifier is not None
        yield FunctionScorer(name, worker, function, entry.error_policy, count_failure, is_verifier)


@asynccontextmanager
async def _running(pool: FunctionPool) -> AsyncIterator[FunctionPool]:
    """Run the processes of a function. Raises PermanentFailure where they cannot be started."""
    try:
        await pool.start()
    except RewardError as error:
        raise PermanentFailure(str(error)) from error
    try:
        yield pool
    finally:
        await pool.close()


def _import_model_scorer() -> Callable[[ProcessContext, Reward, frozenset[str]], Awaitable[None]]:
    # A function needs neither models nor transformers: without them it starts in half the time.
    from kubealign_services.roles.reward.model_scorer import serve_model_scorer

    return serve_model_scorer


def _import_step_scorer(context: ProcessContext, separator: str) -> Callable[..., ResultScorer]:
    # Only steps need the tokenizer and transformers.
    from kubealign_services.roles.reward.step_scorer import StepScorer
    from kubealign_services.roles.reward.step_tokens import StepDivision

    return partial(StepScorer, StepDivision.load(context, separator))


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
