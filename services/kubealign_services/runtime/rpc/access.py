"""Authorization of RPCs: the service contract names the roles that may call each method, and the caller's
certificate names its role.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pool

from kubealign.v1 import options_pb2
from kubealign_services.runtime.rpc.errors import InvalidRequest, Refused
from kubealign_services.runtime.rpc.handlers import wrap_handler

# gRPC's own services are open to every role of the job.
OPEN_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
# Streams that last until the caller ends them; they need no deadline.
_UNBOUNDED_METHODS = (
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    # An episode lasts as long as the policy takes; each of its calls has a time limit.
    "/kubealign.v1.Environments/Play",
)
_SPIFFE_PREFIX = "spiffe://kubealign/"


@cache
def allowed_roles(method: str) -> frozenset[str]:
    """Return the roles that may call `/package.Service/Method`, from its `callers` option; empty when it has
    no such option.
    """
    service, _, name = method.removeprefix("/").rpartition("/")
    try:
        descriptor = descriptor_pool.Default().FindMethodByName(f"{service}.{name}")
    except KeyError:
        return frozenset()
    extension: Any = options_pb2.callers
    return frozenset(descriptor.GetOptions().Extensions[extension].roles)


def certificate_role(names: Iterable[bytes]) -> str | None:
    """Return the role in a certificate's subject alternative names, or None.

    See kubealign.access.certificate_authority.
    """
    for name in names:
        identity = name.decode(errors="replace")
        if identity.startswith(_SPIFFE_PREFIX) and identity.count("/") == 4:
            return identity.rpartition("/")[2]
    return None


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses unauthorized callers, and calls without a deadline."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        @asynccontextmanager
        async def check_access(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            role = certificate_role(context.auth_context().get("x509_subject_alternative_name", ()))
            refusal = denial_reason(method, role)
            if refusal:
                raise Refused(refusal)
            if context.time_remaining() is None and method not in _UNBOUNDED_METHODS:
                raise InvalidRequest(f"{method} was called without a deadline: set one")
            yield

        return wrap_handler(handler, check_access)


def denial_reason(method: str, role: str | None) -> str:
    """Return why the role may not call the method; empty when it may."""
    service = method.removeprefix("/").rpartition("/")[0]
    if service in OPEN_SERVICES:
        return ""
    allowed = allowed_roles(method)
    if role in allowed:
        return ""
    caller = f"the role {role}" if role else "a certificate that names no role"
    permission = f"only {', '.join(sorted(allowed))} may" if allowed else "the contract lets no role do so"
    return f"{caller} may not call {method}: {permission}"
