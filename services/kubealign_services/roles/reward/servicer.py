"""gRPC service Reward: direct calls of the bus worker's scorer."""

import grpc

from kubealign.v1 import scoring_pb2, scoring_pb2_grpc
from kubealign_services.scoring.worker import Scorer


class RewardServicer(scoring_pb2_grpc.RewardServicer):
    """gRPC service of a reward."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    async def Score(
        self, request: scoring_pb2.ScoreRequest, context: grpc.aio.ServicerContext
    ) -> scoring_pb2.ScoreReply:
        return scoring_pb2.ScoreReply(scores=await self._scorer(request.rollouts) if request.rollouts else [])
