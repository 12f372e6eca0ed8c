"""gRPC client of one process: lists its methods by server reflection, and calls them with a deadline."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from kubealign.client.errors import Conflict, Forbidden, KubealignError, NotPossible, Unavailable
from kubealign.client.process_calls.local_process import LocalProcess
from kubealign.client.process_calls.methods import ServiceMethod, methods_of
from kubealign.process_settings import MAX_MESSAGE_BYTES, Role

_OPTIONS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
#: Role that lists methods: reflection is open to every role of the job.
_REFLECTION_ROLES = (Role.RUNNER,)
_ERRORS: dict[grpc.StatusCode, type[KubealignError]] = {
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.UNAUTHENTICATED: Forbidden,
    grpc.StatusCode.FAILED_PRECONDITION: Conflict,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
}


class ProcessClient:
    """Client of one process of a running job.

        client = ProcessClient(await locate_process(backend, runs_dir, ref, "rollout-0"))
        method = find_method("rollout-0", await client.methods(10.0), "Status")
        async for reply in client.call(method, method.parse_request(""), 10.0):
            print(reply)

    Every method raises a KubealignError with the text of the server.
    """

    def __init__(self, process: LocalProcess) -> None:
        self._process = process

    async def methods(self, timeout: float) -> list[ServiceMethod]:
        """Return the methods that the process serves."""
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async with await self._open_channel(_REFLECTION_ROLES) as channel:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
            try:
                async for reply in stub.ServerReflectionInfo(iter([request]), timeout=timeout):
                    return methods_of(service.name for service in reply.list_services_response.service)
            except grpc.aio.AioRpcError as error:
                raise self._to_error(error, "the list of methods", timeout) from None
        raise Unavailable(f"{self._process.name} at {self._process.address} listed no methods")

    async def call(self, method: ServiceMethod, request: Message, timeout: float) -> AsyncIterator[Message]:
        """Call a method with the certificate of a role that may call it; yield its reply, or the replies of
        its stream.

        Args:
            timeout: Seconds until the deadline of the whole call.
        """
        codec = {
            "request_serializer": method.request_class.SerializeToString,
            "response_deserializer": method.reply_class.FromString,
        }
        async with await self._open_channel(method.callers) as channel:
            try:
                if method.streams:
                    async for reply in channel.unary_stream(method.path, **codec)(request, timeout=timeout):
                        yield reply
                else:
                    yield await channel.unary_unary(method.path, **codec)(request, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                raise self._to_error(error, method.name, timeout) from None

    async def _open_channel(self, roles: Iterable[str]) -> grpc.aio.Channel:
        tls = self._process.certificate(roles)
        try:
            ca, key, certificate = await asyncio.to_thread(
                lambda: (tls.ca.read_bytes(), tls.key.read_bytes(), tls.certificate.read_bytes())
            )
        except OSError as error:
            raise Forbidden(f"{error.filename} cannot be read: {error.strerror}") from None
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return grpc.aio.secure_channel(self._process.address, credentials, options=_OPTIONS)

    def _to_error(self, error: grpc.aio.AioRpcError, called: str, timeout: float) -> KubealignError:
        """Return the error to raise for a status."""
        code, details = error.code(), error.details() or error.code().name
        peer = f"{self._process.name} at {self._process.address}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"{peer} did not answer {called} within {timeout:g} s: {details}")
        if code is grpc.StatusCode.UNAVAILABLE:
            return Unavailable(f"{peer} could not be reached for {called}: {details}")
        return _ERRORS.get(code, NotPossible)(f"{self._process.name} {called}: {details}")
