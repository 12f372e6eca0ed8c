"""The WeightsSender service: senders stream their part, receivers relay theirs."""

from collections.abc import AsyncIterator

import grpc

from kubealign.v1 import refit_pb2, sender_pb2_grpc
from kubealign_services.runtime.rpc.errors import NotFound
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.transfer.collective.sender import BroadcastSender
from kubealign_services.weights.transfer.stream.relay import Relay
from kubealign_services.weights.transfer.stream.relay_tree import SENDER, RelayRequest, RelayTree

# Trees that are kept: of the served versions, and of some that are requested late.
_MAX_TREES = 4


class WeightsSenderServicer(sender_pb2_grpc.WeightsSenderServicer):
    """Served by every rank of the trainer. Errors are mapped to status codes by the server's interceptor.

    Args:
        fan_out: Number of receivers that stream a version from here; the others are redirected. None
            streams to all.
        broadcasts: Broadcast sender of this rank, if it has one.
    """

    def __init__(
        self,
        publisher: WeightsPublisher,
        fan_out: int | None = None,
        broadcasts: BroadcastSender | None = None,
    ) -> None:
        self._publisher = publisher
        self._broadcasts = broadcasts
        self._fan_out = fan_out
        # By weights id, least recently used first.
        self._trees: dict[bytes, RelayTree] = {}

    async def FetchWeights(
        self, request: refit_pb2.FetchWeightsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[refit_pb2.WeightsChunk]:
        instead = self._redirect_address(request)
        if instead != SENDER:
            yield refit_pb2.WeightsChunk(instead=instead)
            return
        for chunk in self._publisher.chunks(request):
            yield chunk

    async def JoinBroadcast(
        self, request: refit_pb2.JoinBroadcastRequest, context: grpc.aio.ServicerContext
    ) -> refit_pb2.JoinBroadcastReply:
        if self._broadcasts is None:
            raise NotFound("rollout.refit.transport is not Collective: this process broadcasts nothing")
        return await self._broadcasts.join(request)

    def _redirect_address(self, request: refit_pb2.FetchWeightsRequest) -> str:
        """Return the address that serves the asker; SENDER for this process."""
        if self._fan_out is None or not request.asker:
            return SENDER
        key = request.weights.SerializeToString(deterministic=True)
        tree = self._trees.pop(key, None) or RelayTree(self._fan_out)
        self._trees[key] = tree
        while len(self._trees) > _MAX_TREES:
            del self._trees[next(iter(self._trees))]
        pieces = frozenset(request.tensors) or None
        return tree.assign_parent(
            RelayRequest(request.asker, request.address, pieces, request.delta), request.lost
        )


class RelayServicer(sender_pb2_grpc.WeightsSenderServicer):
    """Served by a receiver: relays the pieces of the newest weights as they arrive."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def FetchWeights(
        self, request: refit_pb2.FetchWeightsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[refit_pb2.WeightsChunk]:
        async for chunk in self._relay.chunks(request):
            yield chunk
