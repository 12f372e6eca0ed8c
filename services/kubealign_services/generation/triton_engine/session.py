"""One worker's session with the model in a Triton server: the connection, the engine that OPEN created, and
its requests. A session is lost as a whole.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
import numpy as np
from tritonclient.grpc import aio as triton
from tritonclient.utils import InferenceServerException

from kubealign.process_settings import TlsFiles
from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign_services.generation.contract import EngineLost, RequestRefused
from kubealign_services.generation.triton_engine.messages import (
    MODEL_NAME,
    TENSOR_NAME,
    ErrorKind,
    Op,
    decode,
    encode,
)

_TRANSPORT_ERRORS = (InferenceServerException, grpc.aio.AioRpcError)
_HEALTH_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_NO_REPLY_ID = "-"


class ModelRejected(ValueError):
    """The folder's model is not supported; retrying does not help."""


class SessionRejected(RuntimeError):
    """Not possible at this moment: another worker has the engine, or the engine is in another state."""


@dataclass(frozen=True)
class EngineSettings:
    """Settings of the engine that OPEN creates.

    owner: name of the worker, shown to other workers. folder: a Hugging Face folder that the server sees
    too. threads: None for all cores of the machine.
    """

    owner: str
    folder: Path
    engine: TorchEngineSpec
    threads: int | None

    def open_message(self) -> dict[str, Any]:
        return {
            "op": Op.OPEN,
            "owner": self.owner,
            "folder": str(self.folder.absolute()),
            "engine": self.engine.model_dump(mode="json"),
            "threads": self.threads,
        }


class TritonSession:
    """A session, open from `open` until `close` or until the server is gone: then `lost_cause` holds the
    reason, and every pending call gets EngineLost.

    All messages share one gRPC stream, which is ended and never cancelled while the server lives: this
    Triton version crashes when a cancellation meets an answer (issues 7368 and 8034 of
    triton-inference-server/server).
    """

    def __init__(self, address: str, tls: TlsFiles) -> None:
        self.lost_cause = ""
        self._session_id = ""
        self._client = triton.InferenceServerClient(
            address,
            ssl=True,
            root_certificates=str(tls.ca),
            private_key=str(tls.key),
            certificate_chain=str(tls.certificate),
            # Retry soon while a server is starting.
            channel_args=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._outgoing: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()
        self._calls: dict[str, TritonCall] = {}
        self._call_ids = itertools.count()
        self._stream: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._status_call: TritonCall | None = None

    @classmethod
    async def open(cls, address: str, tls: TlsFiles, settings: EngineSettings) -> Self:
        """Connect and create the engine.

        Raises EngineLost while the server or its model is not ready; ModelRejected; SessionRejected.
        """
        session = cls(address, tls)
        try:
            if not await session.is_ready():
                raise EngineLost(f"the Triton server at {address} has no model {MODEL_NAME!r} that is ready")
            session._stream = session._client.stream_infer(session._messages())
            session._reader = asyncio.create_task(session._read_answers(), name="Triton's answers")
            session._status_call = session._start_call(settings.open_message())
            session._session_id = (await session._status_call.next_answer())["result"]["session"]
        except BaseException:
            await session.close()
            raise
        return session

    async def is_ready(self) -> bool:
        """Return True where Triton's own endpoints report server and model ready."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                return bool(
                    await self._client.is_server_ready() and await self._client.is_model_ready(MODEL_NAME)
                )
        except (*_TRANSPORT_ERRORS, TimeoutError):
            return False

    async def next_status(self) -> dict[str, Any]:
        """Return the next status message of the model. Raises EngineLost once the session has ended."""
        assert self._status_call is not None
        return await self._status_call.next_answer()

    def call(self, op: Op, **fields: Any) -> "TritonCall":
        """Send a message and return its answers, as a context manager. Raises EngineLost."""
        return self._start_call({"op": op, "session": self._session_id, **fields})

    async def request(self, op: Op, **fields: Any) -> Any:
        """Return the result of a message that has one answer. Raises the exception of an error answer."""
        with self.call(op, **fields) as answers:
            return (await answers.next_answer())["result"]

    def notify(self, op: Op, **fields: Any) -> None:
        """Send a message that has no answer; do nothing once the session is lost."""
        if not self.lost_cause:
            self._outgoing.put_nowait((_NO_REPLY_ID, {"op": op, "session": self._session_id, **fields}))

    def mark_lost(self, cause: str) -> None:
        """End every call with EngineLost."""
        self.lost_cause = self.lost_cause or cause
        for call in self._calls.values():
            call.put_answer(None)

    async def close(self) -> None:
        """End the engine's session, then the stream, then the connection."""
        if self._session_id and not self.lost_cause:
            # CLOSE makes the model end its streams too: a server with open streams does not shut down.
            with contextlib.suppress(EngineLost, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self.request(Op.CLOSE)
        self.mark_lost("the worker has closed its session")
        self._outgoing.put_nowait(None)
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=_CLOSE_SECONDS)
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        with contextlib.suppress(*_TRANSPORT_ERRORS, asyncio.CancelledError):
            await self._client.close()

    def _start_call(self, message: dict[str, Any]) -> "TritonCall":
        if self.lost_cause:
            raise EngineLost(self.lost_cause)
        number = str(next(self._call_ids))
        call = self._calls[number] = TritonCall(self, lambda: self._calls.pop(number, None))
        self._outgoing.put_nowait((number, message))
        return call

    async def _messages(self) -> AsyncGenerator[dict[str, Any]]:
        while (entry := await self._outgoing.get()) is not None:
            number, message = entry
            data = encode(message)
            tensor = triton.InferInput(TENSOR_NAME, [len(data)], "UINT8")
            tensor.set_data_from_numpy(np.frombuffer(data, dtype=np.uint8))
            yield {"model_name": MODEL_NAME, "inputs": [tensor], "request_id": number}

    async def _read_answers(self) -> None:
        """Distribute the answers until the stream ends."""
        try:
            async for result, error in self._stream:
                if error is not None:
                    self.mark_lost(f"the Triton server: {error}")
                    return
                data = result.as_numpy(TENSOR_NAME)
                call = self._calls.get(result.get_response().id)
                # Answers to a call that was abandoned are dropped.
                if call is not None and data is not None:
                    call.put_answer(decode(data.tobytes()))
            self.mark_lost("the Triton server closed the session")
        except _TRANSPORT_ERRORS as error:
            self.mark_lost(f"the Triton server went away: {_error_text(error)}")


class TritonCall:
    """The answers to one message, for as long as the call is open."""

    def __init__(self, session: TritonSession, close: Callable[[], object]) -> None:
        self._session, self._close = session, close
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def put_answer(self, answer: dict[str, Any] | None) -> None:
        """Queue an answer; None means that no more will follow."""
        self._answers.put_nowait(answer)

    async def next_answer(self) -> dict[str, Any]:
        """Return the next answer. Raises the exception of an error answer; EngineLost."""
        answer = await self._answers.get()
        if answer is None:
            # The next caller of `next_answer` must get the same error.
            self._answers.put_nowait(None)
            raise EngineLost(self._session.lost_cause)
        if "error" in answer:
            _raise_error(answer)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _raise_error(answer: dict[str, Any]) -> NoReturn:
    words = answer["words"]
    match ErrorKind(answer["error"]):
        case ErrorKind.REQUEST:
            raise RequestRefused(words)
        case ErrorKind.VALUE:
            raise ValueError(words)
        case ErrorKind.MODEL:
            raise ModelRejected(words)
        case ErrorKind.LOST:
            raise EngineLost(words)
        case ErrorKind.STATE:
            raise SessionRejected(words)


def _error_text(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return str(error.details() or error.code().name)
    return str(error)
