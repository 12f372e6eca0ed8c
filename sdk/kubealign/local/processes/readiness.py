"""Readiness of role processes: grpc.health.v1 over mutual TLS with the runner's certificate."""

import asyncio
from pathlib import Path
from typing import Any

from kubealign.process_settings import TlsFiles

# A starting process refuses connections: retry sooner than gRPC's default of one second.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


async def wait_until_serving(address: str, tls: TlsFiles) -> None:
    """Wait until the server at host:port reports SERVING. Has no timeout of its own."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    credentials = grpc.ssl_channel_credentials(*(await asyncio.to_thread(_read, tls)))
    request = health_pb2.HealthCheckRequest(service="")
    async with grpc.aio.secure_channel(address, credentials, options=_OPTIONS) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        while True:
            try:
                async for response in health.Watch(request, wait_for_ready=True):
                    if response.status == health_pb2.HealthCheckResponse.SERVING:
                        return
            except grpc.aio.AioRpcError:
                # The server is not up yet, or exited between connection and response.
                await asyncio.sleep(0.05)


def _read(tls: TlsFiles) -> tuple[bytes, bytes, bytes]:
    def read(path: Path) -> bytes:
        return path.read_bytes()

    return read(tls.ca), read(tls.key), read(tls.certificate)
