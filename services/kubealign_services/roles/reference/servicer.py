"""gRPC service Reference: direct calls of the bus worker's model."""

import grpc

from kubealign.v1 import scoring_pb2_grpc, training_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.roles.reference.scorer import ReferenceScorer
from kubealign_services.runtime.process.context import ProcessContext


class ReferenceServicer(scoring_pb2_grpc.ReferenceServicer):
    """gRPC service of the reference."""

    def __init__(self, context: ProcessContext, scorer: ReferenceScorer) -> None:
        self._context = context
        self._scorer = scorer

    async def Logprobs(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        logprobs = await self._context.compute(self._scorer.logprobs, decode(request.batch))
        columns, digest = encode_columns({"token.logprobs": logprobs})
        return training_pb2.ForwardReply(columns=columns, digest=digest)
