"""Reward process: `python -m kubealign_services.roles.reward.main SETTINGS.json`."""

import sys
from contextlib import AsyncExitStack

from kubealign.spec.sections.rewards import Reward
from kubealign_services.data.errors import DataError
from kubealign_services.roles.reward.function_scorer import FunctionScorer
from kubealign_services.roles.reward.servicer import RewardServicer
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.role_runner import run_role
from kubealign_services.scoring.attributes import UnknownAttribute
from kubealign_services.scoring.functions.function_reward import FunctionReward, RewardError
from kubealign_services.scoring.purposes import training_purpose
from kubealign_services.scoring.serving import serve_scorer
from kubealign_services.scoring.worker import Scorer


async def serve(context: ProcessContext) -> None:
    """Score rollouts until stopped."""
    name = context.settings.reward
    async with AsyncExitStack() as stack:
        try:
            scorer, purposes = await _create_scorer(context, str(name), stack)
        except (RewardError, DataError, UnknownAttribute) as error:
            raise PermanentFailure(str(error)) from error
        await serve_scorer(context, f"reward-{name}", purposes, scorer, RewardServicer(scorer))


async def _create_scorer(
    context: ProcessContext, name: str, stack: AsyncExitStack
) -> tuple[Scorer, frozenset[str]]:
    """Return the scorer of this name and the purposes that it scores."""
    spec = context.job.spec
    for reward in spec.rewards:
        if reward.name == name:
            purposes = frozenset({training_purpose(context.job, name), "validation"})
            return await _create_reward_scorer(context, reward, stack), purposes
    for score in spec.validation_scores:
        if score.name == name:
            function = FunctionReward(score.function, score.timeout_seconds, name)
            await stack.enter_async_context(function)
            return FunctionScorer(name, context.settings.name, function), frozenset({"validation"})
    names = [*(reward.name for reward in spec.rewards), *(score.name for score in spec.validation_scores)]
    raise PermanentFailure(f"the job has no reward {name}; there are {', '.join(names)}")


async def _create_reward_scorer(context: ProcessContext, reward: Reward, stack: AsyncExitStack) -> Scorer:
    """Create the scorer of a reward: a function or models."""
    target = reward.function or reward.plugin
    if target is not None:
        function = FunctionReward(target, reward.timeout_seconds, reward.name)
        await stack.enter_async_context(function)
        return FunctionScorer(reward.name, context.settings.name, function)
    return await context.compute(_load_model_scorer, context, reward)


def _load_model_scorer(context: ProcessContext, reward: Reward) -> Scorer:
    # A function needs neither models nor transformers: without them it starts in half the time.
    from kubealign_services.roles.reward.model_scorer import load_model_scorer

    return load_model_scorer(context, reward)


def main(argv: list[str]) -> int:
    return run_role(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
