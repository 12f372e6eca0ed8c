"""Reward process: `python -m kubealign_services.roles.reward.main SETTINGS.json`."""

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from kubealign.spec.sections.rewards import Reward, RewardErrorPolicy
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.roles.reward.servicer import RewardServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.functions.function_reward import FunctionReward, RewardError
from kubealign_services.scoring.purposes import training_purpose
from kubealign_services.scoring.row_sources import restrict_to_sources
from kubealign_services.scoring.serving import serve_scorer


async def serve(context: ProcessContext) -> None:
    """Score rollouts until stopped."""
    spec, name = context.job.spec, str(context.settings.reward)
    for reward in spec.rewards:
        if reward.name == name:
            purposes = frozenset({training_purpose(context.job, name), "validation"})
            await _serve_reward(context, reward, purposes)
            return
    for score in spec.validation_scores:
        if score.name == name:
            function = FunctionReward(score.function, score.timeout_seconds, name)
            await _serve_function(context, name, function, frozenset({"validation"}))
            return
    names = [*(reward.name for reward in spec.rewards), *(score.name for score in spec.validation_scores)]
    raise PermanentFailure(f"the job has no reward {name}; there are {', '.join(names)}")


async def _serve_reward(context: ProcessContext, reward: Reward, purposes: frozenset[str]) -> None:
    """Score with a reward: a function or models."""
    target = reward.function or reward.plugin or reward.verifier
    if target is not None:
        function = FunctionReward(target, reward.timeout_seconds, reward.name)
        await _serve_function(
            context,
            reward.name,
            function,
            purposes,
            reward.sources,
            reward.on_error,
            adds_response_length=reward.verifier is not None,
        )
    else:
        serve_models = await context.compute(_import_model_scorer)
        await serve_models(context, reward, purposes)


async def _serve_function(
    context: ProcessContext,
    name: str,
    function: FunctionReward,
    purposes: frozenset[str],
    sources: Sequence[str] | None = None,
    policy: RewardErrorPolicy = RewardErrorPolicy.RETRY,
    adds_response_length: bool = False,
) -> None:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(function)
        except RewardError as error:
            raise PermanentFailure(str(error)) from error
        worker = context.settings.name
        failures = context.metrics.reward_failures
        scorer = restrict_to_sources(
            FunctionScorer(
                name,
                worker,
                function,
                policy,
                lambda kind: failures.labels(name, kind).inc(),
                adds_response_length,
            ),
            name,
            worker,
            sources,
        )
        await serve_scorer(context, f"reward-{name}", purposes, scorer, RewardServicer(scorer))


def _import_model_scorer() -> Callable[[ProcessContext, Reward, frozenset[str]], Awaitable[None]]:
    # A function needs neither models nor transformers: without them it starts in half the time.
    from kubealign_services.roles.reward.model_scorer import serve_model_scorer

    return serve_model_scorer


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
