"""Scorer of rollouts whose reward another server gives."""

from collections.abc import Callable, Sequence

from kubealign.spec.sections.score_calls import RewardErrorPolicy
from kubealign.v1 import rollout_pb2
from kubealign_services.scoring.functions.batching import Outcome
from kubealign_services.scoring.result_scorer import ResultScorer
from kubealign_services.scoring.row_context import read_row_context
from kubealign_services.scoring.servers.contract import ServerReward, ServerSample


class ServerScorer(ResultScorer):
    """Sends the samples to a server."""

    def __init__(
        self,
        name: str,
        worker: str,
        server: ServerReward,
        policy: RewardErrorPolicy,
        on_failure: Callable[[str], None] = lambda kind: None,
    ) -> None:
        super().__init__(name, worker, policy, on_failure)
        self._server = server

    async def _outcomes(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[Outcome]:
        contexts = [read_row_context(rollout) for rollout in rollouts]
        return await self._server.outcomes(
            [
                ServerSample(context["prompt"], rollout.response, context["columns"])
                for context, rollout in zip(contexts, rollouts, strict=True)
            ]
        )
