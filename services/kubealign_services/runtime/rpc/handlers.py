"""Wraps handlers of a gRPC server, unary or streaming, in a context manager."""

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import grpc.aio

HandlerContext = Callable[[grpc.aio.ServicerContext], AbstractAsyncContextManager[None]]


def wrap_handler(handler: grpc.RpcMethodHandler, around: HandlerContext) -> grpc.RpcMethodHandler:
    """Return the handler, run within `around(context)`."""
    kinds = {
        (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
        (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
        (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
        (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
    }
    attribute, make = kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
    inner = getattr(handler, attribute)

    async def respond(request: Any, context: grpc.aio.ServicerContext) -> Any:
        async with around(context):
            return await inner(request, context)

    async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with around(context):
            async for reply in inner(request, context):
                yield reply

    return make(
        stream if inspect.isasyncgenfunction(inner) else respond,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
