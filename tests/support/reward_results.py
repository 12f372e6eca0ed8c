"""Rewards alone of the results of reward functions."""

from collections.abc import Sequence
from typing import Any

from kubealign_services.scoring.functions.function_reward import FunctionReward
from kubealign_services.scoring.functions.results import RewardResult


def rewards(results: Sequence[RewardResult]) -> list[float | None]:
    return [result.reward for result in results]


async def scored(
    function: FunctionReward, prompts: Sequence[str], responses: Sequence[str], columns: dict[str, Any]
) -> list[float | None]:
    """Return the rewards that the function's process gives."""
    return rewards(await function.score(prompts, responses, columns))
