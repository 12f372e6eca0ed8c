"""A reward: `python -m kubealign_services.reward.main SETTINGS.json`."""

import sys
from contextlib import AsyncExitStack

from kubealign.spec.rewards import Reward
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared import load_prepared
from kubealign_services.process.context import Context
from kubealign_services.process.failures import PermanentFailure
from kubealign_services.process.run import run
from kubealign_services.process.until_stopped import until_stopped
from kubealign_services.reward.function import FunctionScorer
from kubealign_services.reward.model import ModelScorer
from kubealign_services.reward.servicer import RewardServicer
from kubealign_services.scoring.functions import FunctionReward, RewardError
from kubealign_services.scoring.models import load_reward_model
from kubealign_services.scoring.worker import Scorer, ScoreWorker

_MICROBATCH_TOKENS = 8192


async def serve(context: Context) -> None:
    """Score until stopped."""
    name = context.settings.reward
    async with AsyncExitStack() as stack:
        try:
            scorer, purposes = await _scorer(context, str(name), stack)
        except (RewardError, DataError) as error:
            raise PermanentFailure(str(error)) from error
        bus = await stack.enter_async_context(context.bus())
        worker = ScoreWorker(bus, f"reward-{name}", purposes, scorer)
        context.heartbeat.describe(worker.said)
        await stack.enter_async_context(context.serve([RewardServicer(scorer)]))
        await until_stopped(context.stop, worker.run())


async def _scorer(context: Context, name: str, stack: AsyncExitStack) -> tuple[Scorer, frozenset[str]]:
    spec = context.job.spec
    for reward in spec.rewards:
        if reward.name == name:
            return await _reward_scorer(context, reward, stack), frozenset({"train", "validation"})
    for score in spec.scores:
        if score.name == name:
            function = FunctionReward(score.function, score.timeout_seconds, name)
            await stack.enter_async_context(function)
            return FunctionScorer(name, context.settings.name, function), frozenset({"validation"})
    known = [*(reward.name for reward in spec.rewards), *(score.name for score in spec.scores)]
    raise PermanentFailure(f"the job has no reward {name}; there are {', '.join(known)}")


async def _reward_scorer(context: Context, reward: Reward, stack: AsyncExitStack) -> Scorer:
    if reward.function is not None:
        function = FunctionReward(reward.function, reward.timeout_seconds, reward.name)
        await stack.enter_async_context(function)
        return FunctionScorer(reward.name, context.settings.name, function)
    folder = load_prepared(context.settings.run_dir).model(f"reward-{reward.name}")
    precision = context.job.spec.trainer.backend.value.precision
    model = await context.compute(load_reward_model, folder, precision, _MICROBATCH_TOKENS)
    return ModelScorer(reward.name, context.settings.name, context, model)


def main(argv: list[str]) -> int:
    return run(serve, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
