"""Rewards by a Python function, called in a process of its own."""

from collections.abc import Sequence
from typing import Any

from kubealign.spec.rewards import RewardFunction, RewardPlugin
from kubealign_services.scoring.errors import BadReward, RewardError, RewardHung, RewardMissing, RewardRaised
from kubealign_services.scoring.function_process import FunctionProcess, target_of

__all__ = ["BadReward", "FunctionReward", "RewardError", "RewardHung", "RewardMissing", "RewardRaised"]


class FunctionReward(FunctionProcess):
    """One reward function. `name` is the reward's, for errors."""

    def __init__(self, spec: RewardFunction | RewardPlugin, timeout_seconds: float, name: str = "") -> None:
        if isinstance(spec, RewardPlugin):
            target: dict[str, Any] = {"plugin": spec.name, "parameters": spec.parameters}
            called = f"plugin {spec.name}"
        else:
            target, called = target_of(spec)
        super().__init__(target, f"reward {name}: {called}" if name else f"reward {called}", timeout_seconds)

    async def score(
        self, prompts: Sequence[str], responses: Sequence[str], columns: dict[str, list[Any]]
    ) -> list[float]:
        """One finite number a response. columns: name -> one JSON value a response.

        Raises RewardMissing, RewardRaised, RewardHung or BadReward; after any of them the next call starts
        afresh where it has to.
        """
        reply = await self.ask({"prompts": list(prompts), "responses": list(responses), "columns": columns})
        rewards: list[float] = reply["rewards"]
        return rewards
