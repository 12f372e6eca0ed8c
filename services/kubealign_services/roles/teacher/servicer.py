"""gRPC service Teacher: direct calls of the bus worker's model."""

import grpc

from kubealign.v1 import scoring_pb2_grpc, training_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.roles.teacher.scorer import TeacherScorer
from kubealign_services.runtime.process.context import ProcessContext


class TeacherServicer(scoring_pb2_grpc.TeacherServicer):
    """gRPC service of the teacher."""

    def __init__(self, context: ProcessContext, scorer: TeacherScorer) -> None:
        self._context = context
        self._scorer = scorer

    async def Candidates(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        tokens, logprobs = await self._context.compute(self._scorer.candidates, decode(request.batch))
        columns, digest = encode_columns({"token.candidates": tokens, "token.candidate_logprobs": logprobs})
        return training_pb2.ForwardReply(columns=columns, digest=digest)
