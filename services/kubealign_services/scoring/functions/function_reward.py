"""Rewards by a Python function, called in a process of its own."""

from collections.abc import Sequence
from typing import Any

from kubealign.spec.base import field_alias
from kubealign.spec.sections.rewards import RewardFunction, RewardPlugin
from kubealign.spec.sections.verifiers import Verifier
from kubealign_services.scoring.functions.errors import (
    BadReward,
    RewardError,
    RewardHung,
    RewardMissing,
    RewardRaised,
)
from kubealign_services.scoring.functions.function_process import FunctionProcess, function_target
from kubealign_services.scoring.functions.results import RewardResult

__all__ = ["BadReward", "FunctionReward", "RewardError", "RewardHung", "RewardMissing", "RewardRaised"]


class FunctionReward(FunctionProcess):
    """One reward function. `name`: name of the reward, for errors."""

    def __init__(
        self, spec: RewardFunction | RewardPlugin | Verifier, timeout_seconds: float, name: str = ""
    ) -> None:
        if isinstance(spec, RewardPlugin):
            target: dict[str, Any] = {"plugin": spec.name, "parameters": spec.parameters}
            description = f"plugin {spec.name}"
        elif isinstance(spec, Verifier):
            target = {"verifier": spec.model_dump(by_alias=True, exclude_none=True, mode="json")}
            description = f"verifier {field_alias(Verifier, spec.member)}"
        else:
            target, description = function_target(spec)
        label = f"reward {name}: {description}" if name else f"reward {description}"
        super().__init__(target, label, timeout_seconds)

    async def score(
        self, prompts: Sequence[str], responses: Sequence[str], columns: dict[str, list[Any]]
    ) -> list[RewardResult]:
        """Return one result per response.

        Args:
            columns: Name -> one JSON value per response.

        The call as a whole has `timeout_seconds`: see BatchedFunction for more than one response.

        Raises RewardMissing, RewardRaised, RewardHung or BadReward; after any of them the next call
        restarts the process where necessary.
        """
        reply = await self.request(
            {"prompts": list(prompts), "responses": list(responses), "columns": columns}
        )
        return [RewardResult.from_json(result) for result in reply["results"]]
