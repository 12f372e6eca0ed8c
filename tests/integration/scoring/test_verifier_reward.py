"""Verifiers in their processes, and in a job."""

from typing import Any

import pytest

from kubealign.spec.sections.verifiers import Verifier
from kubealign_services.scoring.functions.errors import RewardMissing, RewardRaised
from kubealign_services.scoring.functions.function_reward import FunctionReward
from kubealign_services.scoring.functions.protocol import RESPONSE_LENGTH
from support.reward_results import scored

pytestmark = pytest.mark.timeout(120)


def reward(**document: Any) -> FunctionReward:
    return FunctionReward(Verifier.model_validate(document), 30.0, "right")


async def test_math_in_its_process() -> None:
    async with reward(math={}) as function:
        # The last comparison is stopped by a signal, which its library can set in a main thread only.
        rewards = await scored(
            function,
            ["p"] * 4,
            [r"\boxed{1/2}", "0.3", "?", "$9^{9^{9^{9}}}$"],
            {"answer": ["0.5", "0.5", None, "2^{100000000}"]},
        )
        assert rewards == [1.0, 0.0, None, 0.0]
        with pytest.raises(RewardRaised, match=r"right: verifier math .*no column 'answer'; there are: key"):
            await scored(function, ["p"], ["1"], {"key": ["1"]})


async def test_lengths_in_its_process() -> None:
    async with reward(length={"linear": {"fullTokens": 2, "zeroTokens": 4}}) as function:
        assert await scored(function, ["p"] * 3, ["a"] * 3, {RESPONSE_LENGTH: [2, 3, 4]}) == [1.0, 0.5, 0.0]


async def test_an_invalid_schema_ends_the_start() -> None:
    function = reward(jsonSchema={"schema": {"type": "number of things"}})
    with pytest.raises(RewardMissing, match="verifier jsonSchema cannot be used: not a JSON Schema"):
        await function.start()
    await function.close()
