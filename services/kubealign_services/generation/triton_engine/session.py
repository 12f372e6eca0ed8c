"""One worker's session with the model in a Triton server: the connection, the engine that OPEN made, and
what is asked of it. Lost as a whole."""

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

from kubealign.process import TlsFiles
from kubealign.spec.engines import TorchEngine
from kubealign_services.generation.contract import EngineLost, RequestRefused
from kubealign_services.generation.triton_engine.messages import MODEL, TENSOR, Op, Refusal, decoded, encoded

_TRANSPORT = (InferenceServerException, grpc.aio.AioRpcError)
_HEALTH_SECONDS = 2.0
_CLOSE_SECONDS = 2.0
_UNANSWERED = "-"


class ModelRefused(ValueError):
    """The folder's model cannot be run; asking again does not mend it."""


class SessionRefused(RuntimeError):
    """Not at this moment: another worker has the engine, or it is not in a state for this."""


@dataclass(frozen=True)
class Opening:
    """What the engine is made of: a Hugging Face folder that the server sees too, the engine's settings, its
    threads (None: the machine's cores). owner: who asks, for those that it keeps out."""

    owner: str
    folder: Path
    engine: TorchEngine
    threads: int | None

    def message(self) -> dict[str, Any]:
        return {
            "op": Op.OPEN,
            "owner": self.owner,
            "folder": str(self.folder.absolute()),
            "engine": self.engine.model_dump(mode="json"),
            "threads": self.threads,
        }


class Session:
    """Open from `open` until `close`, or until the server is gone: then `cause` says why, and whatever waits
    for an answer gets EngineLost.

    All messages share one gRPC stream, which is ended and never cancelled while the server lives: this Triton
    dies of cancellations that meet its answers (issues 7368 and 8034 of triton-inference-server/server)."""

    def __init__(self, address: str, tls: TlsFiles) -> None:
        self.cause = ""
        self._name = ""
        self._client = triton.InferenceServerClient(
            address,
            ssl=True,
            root_certificates=str(tls.ca),
            private_key=str(tls.key),
            certificate_chain=str(tls.certificate),
            # A server that is just being started is tried again soon.
            channel_args=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self._outgoing: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()
        self._calls: dict[str, Call] = {}
        self._numbers = itertools.count()
        self._stream: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._news: Call | None = None

    @classmethod
    async def open(cls, address: str, tls: TlsFiles, opening: Opening) -> Self:
        """Raises EngineLost while the server or its model is not ready; ModelRefused; SessionRefused."""
        session = cls(address, tls)
        try:
            if not await session.ready():
                raise EngineLost(f"the Triton server at {address} has no model {MODEL!r} that is ready")
            session._stream = session._client.stream_infer(session._messages())
            session._reader = asyncio.create_task(session._read(), name="Triton's answers")
            session._news = session._call(opening.message())
            session._name = (await session._news.next())["result"]["session"]
        except BaseException:
            await session.close()
            raise
        return session

    async def ready(self) -> bool:
        """What Triton's own endpoints say of server and model."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                return bool(await self._client.is_server_ready() and await self._client.is_model_ready(MODEL))
        except (*_TRANSPORT, TimeoutError):
            return False

    async def news(self) -> dict[str, Any]:
        """What the model says next of itself. Raises EngineLost once the session has ended."""
        assert self._news is not None
        return await self._news.next()

    def call(self, op: Op, **fields: Any) -> "Call":
        """Send a message; its answers. Used as a context. Raises EngineLost."""
        return self._call({"op": op, "session": self._name, **fields})

    async def ask(self, op: Op, **fields: Any) -> Any:
        """The result of a message that has one answer. Raises what a refusal stands for."""
        with self.call(op, **fields) as answers:
            return (await answers.next())["result"]

    def tell(self, op: Op, **fields: Any) -> None:
        """Send a message that has no answer, if there is anybody."""
        if not self.cause:
            self._outgoing.put_nowait((_UNANSWERED, {"op": op, "session": self._name, **fields}))

    def lose(self, cause: str) -> None:
        """Every call ends with EngineLost."""
        self.cause = self.cause or cause
        for call in self._calls.values():
            call.give(None)

    async def close(self) -> None:
        """End the engine's session, the stream, then the connection."""
        if self._name and not self.cause:
            # The model closes its ends too: a server with open streams does not end by itself.
            with contextlib.suppress(EngineLost, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self.ask(Op.CLOSE)
        self.lose("the worker has closed its session")
        self._outgoing.put_nowait(None)
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=_CLOSE_SECONDS)
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        with contextlib.suppress(*_TRANSPORT, asyncio.CancelledError):
            await self._client.close()

    def _call(self, message: dict[str, Any]) -> "Call":
        if self.cause:
            raise EngineLost(self.cause)
        number = str(next(self._numbers))
        call = self._calls[number] = Call(self, lambda: self._calls.pop(number, None))
        self._outgoing.put_nowait((number, message))
        return call

    async def _messages(self) -> AsyncGenerator[dict[str, Any]]:
        while (said := await self._outgoing.get()) is not None:
            number, message = said
            data = encoded(message)
            tensor = triton.InferInput(TENSOR, [len(data)], "UINT8")
            tensor.set_data_from_numpy(np.frombuffer(data, dtype=np.uint8))
            yield {"model_name": MODEL, "inputs": [tensor], "request_id": number}

    async def _read(self) -> None:
        """Hand out the answers until the stream ends."""
        try:
            async for result, error in self._stream:
                if error is not None:
                    self.lose(f"the Triton server: {error}")
                    return
                data = result.as_numpy(TENSOR)
                call = self._calls.get(result.get_response().id)
                # Nobody waits any more for those of a call that was left.
                if call is not None and data is not None:
                    call.give(decoded(data.tobytes()))
            self.lose("the Triton server closed the session")
        except _TRANSPORT as error:
            self.lose(f"the Triton server went away: {_words(error)}")


class Call:
    """A message's answers, as long as it is open."""

    def __init__(self, session: Session, close: Callable[[], object]) -> None:
        self._session, self._close = session, close
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def give(self, answer: dict[str, Any] | None) -> None:
        """None: there will be none any more."""
        self._answers.put_nowait(answer)

    async def next(self) -> dict[str, Any]:
        """The next answer. Raises what a refusal stands for; EngineLost."""
        answer = await self._answers.get()
        if answer is None:
            # Whoever asks again hears it again.
            self._answers.put_nowait(None)
            raise EngineLost(self._session.cause)
        if "error" in answer:
            _raise(answer)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _raise(answer: dict[str, Any]) -> NoReturn:
    words = answer["words"]
    match Refusal(answer["error"]):
        case Refusal.REQUEST:
            raise RequestRefused(words)
        case Refusal.VALUE:
            raise ValueError(words)
        case Refusal.MODEL:
            raise ModelRefused(words)
        case Refusal.LOST:
            raise EngineLost(words)
        case Refusal.STATE:
            raise SessionRefused(words)


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return str(error.details() or error.code().name)
    return str(error)
