"""Whether a role process serves: grpc.health.v1 over mutual TLS, as the runner."""

import asyncio
from pathlib import Path
from typing import Any

from kubealign.process import TlsFiles

# A process that is being started refuses connections: try again soon, not after gRPC's second.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


async def serving(address: str, tls: TlsFiles) -> None:
    """Return when the server at host:port says SERVING. No deadline of its own."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    credentials = grpc.ssl_channel_credentials(*(await asyncio.to_thread(_read, tls)))
    request = health_pb2.HealthCheckRequest(service="")
    async with grpc.aio.secure_channel(address, credentials, options=_OPTIONS) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for answer in health.Watch(request, wait_for_ready=True):
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                # It is not up yet, or ended between connecting and answering.
                await asyncio.sleep(0.05)


def _read(tls: TlsFiles) -> tuple[bytes, bytes, bytes]:
    def read(path: Path) -> bytes:
        return path.read_bytes()

    return read(tls.ca), read(tls.key), read(tls.certificate)
