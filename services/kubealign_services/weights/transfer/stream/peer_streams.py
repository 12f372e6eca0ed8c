"""Streams weights over gRPC from the WeightsSender service of the address in an announcement."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self

from kubealign.process_settings import TlsFiles
from kubealign.v1 import refit_pb2, sender_pb2_grpc
from kubealign_services.runtime.rpc.client import Peer
from kubealign_services.runtime.rpc.errors import Unreachable

#: (host:port, request, seconds for the whole stream) -> its chunks. Raises rpc.errors.
OpenStream = Callable[[str, refit_pb2.FetchWeightsRequest, float], AsyncGenerator[refit_pb2.WeightsChunk]]


class PeerStreams:
    """Opens weights streams over gRPC. Keeps one connection for each address until the context ends."""

    def __init__(self, tls: TlsFiles) -> None:
        self._tls = tls
        self._peers: dict[str, Peer] = {}

    async def __call__(
        self, address: str, request: refit_pb2.FetchWeightsRequest, timeout: float
    ) -> AsyncGenerator[refit_pb2.WeightsChunk]:
        peer = self._peer(address)
        try:
            async with aclosing(peer.stream("FetchWeights", request, timeout)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Unreachable:
            # The next attempt resolves the name again; this connection would do so much later.
            if self._peers.get(address) is peer:
                del self._peers[address]
            await peer.close()
            raise

    async def join(
        self, address: str, request: refit_pb2.JoinBroadcastRequest, timeout: float
    ) -> refit_pb2.JoinBroadcastReply:
        """Join a broadcast. Raises rpc.errors."""
        reply = await self._peer(address).call("JoinBroadcast", request, timeout)
        assert isinstance(reply, refit_pb2.JoinBroadcastReply)
        return reply

    def _peer(self, address: str) -> Peer:
        if address not in self._peers:
            stub = sender_pb2_grpc.WeightsSenderStub
            self._peers[address] = Peer("the sender", address, self._tls, stub)
        return self._peers[address]

    async def close(self) -> None:
        while self._peers:
            _, peer = self._peers.popitem()
            await peer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
