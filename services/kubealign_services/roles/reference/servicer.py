"""gRPC service Reference: direct calls of the bus worker's model."""

import grpc

from kubealign.v1 import scoring_pb2_grpc, training_pb2
from kubealign_services.scoring.frozen_scorer import FrozenScorer


class ReferenceServicer(scoring_pb2_grpc.ReferenceServicer):
    """gRPC service of the reference."""

    def __init__(self, scorer: FrozenScorer) -> None:
        self._scorer = scorer

    async def Logprobs(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._scorer.forward(request)
