"""The WeightsSender service: whoever has published streams its part."""

from collections.abc import AsyncIterator

import grpc

from kubealign.v1 import refit_pb2, sender_pb2_grpc
from kubealign_services.refit.publisher import WeightsPublisher


class WeightsSenderServicer(sender_pb2_grpc.WeightsSenderServicer):
    """Every rank of the trainer serves it. Errors are mapped to status codes by the server's interceptor."""

    def __init__(self, publisher: WeightsPublisher) -> None:
        self._publisher = publisher

    async def FetchWeights(
        self, request: refit_pb2.FetchWeightsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[refit_pb2.WeightsChunk]:
        for chunk in self._publisher.chunks(request):
            yield chunk
