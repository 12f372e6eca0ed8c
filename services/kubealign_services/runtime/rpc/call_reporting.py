"""Server interceptor that maps exceptions to statuses, and counts and times every call by its status."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from kubealign_services.runtime.rpc.errors import to_status
from kubealign_services.runtime.rpc.handlers import wrap_handler
from kubealign_services.telemetry.tracing import server_span

log = logging.getLogger(__name__)

#: Key of the trailing metadata that holds the exception's class name.
ERROR_KIND_KEY = "kubealign-error"

#: Called after each call with its method (/package.Service/Method), the name of its status code, and seconds.
CallObserver = Callable[[str, str, float], None]


class CallReportInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Outermost interceptor, so that calls refused by other interceptors are counted too."""

    def __init__(self, observe: CallObserver) -> None:
        self._observe = observe

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
        async def report_call(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
            begin = time.monotonic()
            code = grpc.StatusCode.OK
            try:
                with server_span(method, handler_call_details.invocation_metadata):
                    yield
            except grpc.aio.AbortError:
                code = _status_code(context)
                raise
            except (asyncio.CancelledError, GeneratorExit):
                code = grpc.StatusCode.CANCELLED
                raise
            except Exception as error:
                status = to_status(error)
                code = status.code
                level = logging.ERROR if code is grpc.StatusCode.INTERNAL else logging.WARNING
                trace = code is grpc.StatusCode.INTERNAL
                log.log(
                    level, "a call failed", exc_info=trace, extra={"method": method, "error": status.message}
                )
                await context.abort(code, status.message, ((ERROR_KIND_KEY, status.kind),))
            finally:
                self._observe(method, code.name, time.monotonic() - begin)

        return wrap_handler(handler, report_call)


def _status_code(context: grpc.aio.ServicerContext) -> grpc.StatusCode:
    """Return the code that the call was aborted with; gRPC's context holds its number."""
    code = context.code()
    named = (candidate for candidate in grpc.StatusCode if candidate is code or candidate.value[0] == code)
    return next(named, grpc.StatusCode.UNKNOWN)
