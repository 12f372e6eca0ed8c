"""Rewards of a service with kubealign's HTTP contract.

Request: {"reward": NAME, "samples": [{"prompt": text, "response": text, "columns": {name: value}}]}.
Answer: {"results": [result]}, one for each sample in order, each as a reward function returns it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kubealign_services.scoring.functions.batching import Outcome
from kubealign_services.scoring.functions.errors import RewardError
from kubealign_services.scoring.functions.results import InvalidResult, RewardResult, check_results
from kubealign_services.scoring.servers.contract import ServerSample
from kubealign_services.scoring.servers.endpoint import Endpoint, UnusableAnswer


class HttpServerReward:
    """A ServerReward of such a service.

    Args:
        name: Name of the reward, which the requests state.
    """

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self._name = name
        self._endpoint = endpoint

    async def outcomes(self, samples: Sequence[ServerSample]) -> list[Outcome]:
        def read(answer: Any) -> list[RewardResult]:
            results = answer.get("results") if isinstance(answer, dict) else None
            if results is None:
                raise UnusableAnswer("the answer is no object with the key 'results'")
            try:
                return check_results(results, len(samples))
            except InvalidResult as error:
                raise UnusableAnswer(f"the service {error}") from error

        body = {"reward": self._name, "samples": [asdict(sample) for sample in samples]}
        try:
            return list(await self._endpoint.post(body, read))
        except RewardError as error:
            if error.is_of_sample and len(samples) > 1:
                return [outcome for sample in samples for outcome in await self.outcomes([sample])]
            return [error] * len(samples)
