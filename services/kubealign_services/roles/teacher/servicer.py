"""gRPC service Teacher: direct calls of the bus worker's model."""

import grpc

from kubealign.v1 import scoring_pb2_grpc, training_pb2
from kubealign_services.scoring.frozen_scorer import FrozenScorer


class TeacherServicer(scoring_pb2_grpc.TeacherServicer):
    """gRPC service of the teacher."""

    def __init__(self, scorer: FrozenScorer) -> None:
        self._scorer = scorer

    async def Candidates(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._scorer.forward(request)
