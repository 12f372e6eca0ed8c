"""gRPC client of another role: every call has a deadline, and every failure names the peer and the method."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
from cryptography import x509
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kubealign.process_settings import Role, TlsFiles
from kubealign_services.runtime.rpc.call_reporting import ERROR_KIND_KEY
from kubealign_services.runtime.rpc.errors import RpcStatus, Unreachable, to_exception
from kubealign_services.runtime.rpc.server import GRPC_OPTIONS
from kubealign_services.telemetry.tracing import trace_metadata

_CHANNEL_OPTIONS = (
    *GRPC_OPTIONS,
    # A restarted role is reconnected within two seconds, not within gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Its name may resolve to another address by then; gRPC would resolve it every 30 s at most.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)
_PROBE_SECONDS = 5.0
# After this long without a connection the channel is replaced: a channel whose name did not resolve for some
# time resolves it again only every two minutes, which cannot be configured.
_REPLACE_CHANNEL_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_ERROR_SECONDS = 1.0
# gRPC's text when the certificate has no name that the client accepts.
_NAME_MISMATCH = "Hostname Verification Check failed"


def connect(address: str, tls: TlsFiles, role: Role | None = None) -> grpc.aio.Channel:
    """Return a channel to host:port. The connection is made by the first call.

    Args:
        role: Role that the server's certificate must have; None: any role of the job. Certificates are valid
            for every host of the job, so the server's name in the certificate takes the place of the host.
    """
    certificate = tls.certificate.read_bytes()
    options: tuple[tuple[str, int | str], ...] = _CHANNEL_OPTIONS
    if role is not None and _names_roles(certificate):
        options += (("grpc.ssl_target_name_override", role.server_name),)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes(),
        private_key=tls.key.read_bytes(),
        certificate_chain=certificate,
    )
    return grpc.aio.secure_channel(address, credentials, options=options)


def _names_roles(certificate_pem: bytes) -> bool:
    """Return True if the job's certificates have server names of roles.

    Those of a job that an older release started have none; this process has one of them.
    """
    extensions = x509.load_pem_x509_certificate(certificate_pem).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return not {role.server_name for role in Role}.isdisjoint(names.get_values_for_type(x509.DNSName))


@dataclass(frozen=True)
class _HealthAnswer:
    """Result of a health check. connected: the peer itself answered."""

    serves: bool
    connected: bool
    text: str


async def _probe_health(channel: grpc.aio.Channel, deadline: float) -> _HealthAnswer:
    """Repeat the health check until the peer serves or the deadline (of the loop's clock) passes; return the
    last answer.
    """
    stub = health_pb2_grpc.HealthStub(channel)
    loop = asyncio.get_running_loop()
    answer = _HealthAnswer(serves=False, connected=False, text="no answer")
    while (left := deadline - loop.time()) > 0:
        try:
            reply = await stub.Check(
                health_pb2.HealthCheckRequest(), timeout=min(left, _PROBE_SECONDS), wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            answer = _HealthAnswer(False, False, error.details() or error.code().name)
        else:
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                return _HealthAnswer(True, True, "it serves")
            answer = _HealthAnswer(False, True, "it is not ready")
        await asyncio.sleep(_PAUSE_SECONDS)
    return answer


class Peer:
    """Another role at one address.

        async with Peer("trainer", address, tls, TrainerStub) as trainer:
            reply = await trainer.call("TrainStep", request, timeout=600.0)

    Args:
        name: Name of the peer in messages.
        stub: A generated `...Stub` class.
        role: Role that the server's certificate must have; None: any role of the job.
    """

    def __init__(
        self,
        name: str,
        address: str,
        tls: TlsFiles,
        stub: Callable[[grpc.aio.Channel], Any],
        role: Role | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self._tls = tls
        self._stub_class = stub
        self._role = role
        self._connect()

    def _connect(self) -> None:
        self._channel = connect(self.address, self._tls, self._role)
        self._stub = self._stub_class(self._channel)

    async def call(self, method: str, request: Message, timeout: float) -> Any:
        """Call a unary method and return the reply.

        Raises Unreachable, and the exception raised by the peer (see rpc.errors).
        """
        try:
            return await getattr(self._stub, method)(request, timeout=timeout, metadata=trace_metadata())
        except grpc.aio.AioRpcError as error:
            raise self._to_exception(error, method, timeout) from error

    async def stream(self, method: str, request: Message, timeout: float) -> AsyncGenerator[Any]:
        """Call a streaming method, whose replies must all arrive within `timeout` seconds.

        Raises the exceptions of `call`.
        """
        call = getattr(self._stub, method)(request, timeout=timeout, metadata=trace_metadata())
        try:
            async for reply in call:
                yield reply
        except grpc.aio.AioRpcError as error:
            raise self._to_exception(error, method, timeout) from error
        finally:
            call.cancel()

    async def wait_until_ready(self, timeout: float) -> None:
        """Wait until the peer serves, resolving its name again when needed.

        Cancels other calls of this peer while it cannot be reached. Raises Unreachable.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            answer = await _probe_health(self._channel, min(deadline, loop.time() + _REPLACE_CHANNEL_SECONDS))
            if answer.serves:
                return
            if loop.time() >= deadline:
                text = answer.text if answer.connected else await self._connection_error(answer.text)
                raise Unreachable(f"{self.name} at {self.address} was not ready within {timeout:g} s: {text}")
            if not answer.connected:
                await self._channel.close()
                self._connect()

    async def _connection_error(self, default: str) -> str:
        """Return why the connection fails; a call that waits for the connection does not report it."""
        stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=_ERROR_SECONDS)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return self._explain(error.details() or default)
        return default

    def _explain(self, details: str) -> str:
        """Return the details of a failed connection, with the reason if the server has another role."""
        if self._role is None or _NAME_MISMATCH not in details:
            return details
        return (
            f"its certificate is not one of the role {self._role}: another process of the job, or of another "
            f"job, listens there ({details})"
        )

    async def wait_until_unreachable(self) -> None:
        """Wait until the peer stops serving.

        Raises Unreachable as soon as it ends, its connection breaks, or it reports that it does not serve.
        """
        stub = health_pb2_grpc.HealthStub(self._channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True)
        cause = "it ended"
        try:
            async for reply in watch:
                if reply.status != health_pb2.HealthCheckResponse.SERVING:
                    cause = "it no longer serves"
                    break
        except grpc.aio.AioRpcError as error:
            cause = error.details() or error.code().name
        finally:
            watch.cancel()
        raise Unreachable(f"{self.name} at {self.address} was lost: {cause}")

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _to_exception(self, error: grpc.aio.AioRpcError, method: str, timeout: float) -> Exception:
        """Return the exception to raise for a gRPC error."""
        peer = f"{self.name} at {self.address}"
        code, details = error.code(), error.details() or error.code().name
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unreachable(f"{peer} did not answer {method} within {timeout:g} s")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return Unreachable(f"{peer} could not be reached for {method}: {self._explain(details)}")
        kind = dict(error.trailing_metadata() or ()).get(ERROR_KIND_KEY, "")
        return to_exception(RpcStatus(code, str(kind), f"{self.name} {method}: {details}"))
