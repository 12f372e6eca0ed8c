"""A `Generator` whose engine is a model in a Triton server."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from kubealign.process import TlsFiles
from kubealign.spec.rollout import InFlight
from kubealign_services.generation.contract import (
    EngineLoad,
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
)
from kubealign_services.generation.gate import Gate
from kubealign_services.generation.triton_engine.messages import Op, read_load, read_sample, request_fields
from kubealign_services.generation.triton_engine.server import Server
from kubealign_services.generation.triton_engine.session import Opening, Session, SessionRefused
from kubealign_services.generation.triton_engine.weights_file import write_weights

Compute = Callable[..., Awaitable[Any]]

#: Seconds between two attempts to reach a server that is starting.
_AGAIN_SECONDS = 0.2
_HEALTH_SECONDS = 2.0

log = logging.getLogger(__name__)


class EngineFailed(RuntimeError):
    """The engine in the server is permanently unusable; the message is the engine's own error."""


class TritonGenerator:
    """A Generator over a TritonSession. A context manager, which ends the session and the server.

    `run` must be running for a dead server to be noticed and restarted. `ready`: Triton reports server and
    model ready, and the session is open.
    """

    def __init__(
        self,
        server: Server,
        tls: TlsFiles,
        opening: Opening,
        memory: Path,
        compute: Compute,
        patience: float,
        observe: Callable[[EngineLoad], None] = lambda load: None,
    ) -> None:
        """Configure the generator without starting the server.

        Args:
            memory: Folder on a memory file system that the server sees too, for weight transfer.
            compute: Runs long work off the event loop.
            patience: Seconds for a server to become ready, to return, or to send a message.
        """
        self.load = EngineLoad()
        self.ready = False
        self._server = server
        self._tls = tls
        self._opening = opening
        self._memory = memory
        self._compute = compute
        self._patience = patience
        self._observe = observe
        # Totals counted by the earlier engines.
        self._earlier = EngineLoad()
        self._session: Session | None = None
        self._returned = asyncio.Event()
        self._losses: asyncio.Queue[str] = asyncio.Queue()
        self._present: set[str] = set()
        self._gate = Gate()
        # True once the weights may have changed within the present `paused` block.
        self._touched = False

    @property
    def in_flight(self) -> int:
        return len(self._present)

    async def __aenter__(self) -> Self:
        """Start the server and open the session.

        Raises EngineLost for a server that is not ready in time; ModelRejected.
        """
        await self._server.__aenter__()
        try:
            await self._open()
        except BaseException as error:
            await self._server.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A server with open streams does not shut down.
        self.ready = False
        try:
            if self._session is not None:
                await self._session.close()
        finally:
            await self._server.__aexit__(kind, error, trace)

    async def run(self) -> None:
        """Follow the session for ever, and open another when the server has died.

        Raises EngineFailed; EngineLost for a server that does not return in time.
        """
        while True:
            cause = await self._lost_session()
            log.warning("the engine was lost", extra={"cause": cause, "groups": len(self._present)})
            await self._forget(cause)
            await self._open()

    async def lost(self) -> str:
        return await self._losses.get()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        if request.request_id in self._present:
            raise RequestRefused(f"group {request.request_id} is being generated already")
        self._present.add(request.request_id)
        try:
            async with self._gate.entered():
                session = self._present_session()
                missing = len(request.seeds) or 1
                try:
                    with session.call(Op.GENERATE, request=request_fields(request)) as answers:
                        while missing:
                            sample = read_sample((await answers.next())["sample"])
                            missing -= 1
                            yield sample
                except RequestRefused:
                    missing = 0
                    raise
                finally:
                    if missing:
                        session.tell(Op.ABORT, request_id=request.request_id)
        finally:
            self._present.discard(request.request_id)

    @asynccontextmanager
    async def quiet(self, in_flight: InFlight) -> AsyncIterator[None]:
        """Pause generation; see `Generator.paused`.

        Where the block fails after the weights were touched, paused requests end with EngineLost: none of
        their tokens is generated with unverified weights.
        """
        drained = in_flight is InFlight.DRAIN
        async with self._gate.closed(drained=drained):
            # While a server is starting nothing runs, and the gate admits nothing.
            session = None if drained else self._session
            self._touched = False
            lost = ""
            try:
                if session is not None:
                    with suppress(EngineLost):
                        await session.ask(Op.HOLD)
                yield
            except BaseException as error:
                if self._touched:
                    lost = f"a refit came to nothing under it: {error!r}"
                raise
            finally:
                if session is not None:
                    session.tell(Op.RELEASE, lost=lost)

    async def refit(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, in_flight: InFlight = InFlight.DRAIN
    ) -> None:
        self._touched = True
        await self._hand_over(Op.REFIT, tensors, version=version, in_flight=in_flight)

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        self._touched = True
        await self._hand_over(Op.ADAPT, tensors, scale=scale, version=version, in_flight=in_flight)

    async def proven_by(self, proof: asyncio.Future[None]) -> None:
        await asyncio.shield(proof)

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        session = await self._any_session()
        logprobs: list[float] = await session.ask(Op.SEQUENCE_LOGPROBS, tokens=tokens)
        return logprobs

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        async with self._gate.entered():
            try:
                result = await self._present_session().ask(
                    Op.CONTINUATION_LOGPROBS,
                    prompt=list(prompt),
                    continuations=[list(tokens) for tokens in continuations],
                )
            except RequestRefused:
                raise
            except ValueError as error:
                raise RequestRefused(str(error)) from error
        return result["logprobs"], int(result["version"])

    async def _hand_over(self, op: Op, tensors: Iterable[tuple[str, Tensor]], **fields: Any) -> None:
        """Transfer tensors through a file in shared memory: through the server they would be copied many
        times.
        """
        session = await self._any_session()
        path = (self._memory / f"{self._opening.owner}.weights").absolute()
        try:
            entries = await self._compute(write_weights, path, tensors)
            await session.ask(op, path=str(path), tensors=entries, **fields)
        finally:
            path.unlink(missing_ok=True)

    def _present_session(self) -> Session:
        if self._session is None or self._session.cause:
            raise EngineLost("the Triton server is being started again")
        return self._session

    async def _any_session(self) -> Session:
        """Return the session, after waiting for a server that is restarting. Raises EngineLost."""
        try:
            async with asyncio.timeout(self._patience):
                await self._returned.wait()
        except TimeoutError:
            raise EngineLost(f"no Triton server was ready within {self._patience:g} s") from None
        return self._present_session()

    async def _lost_session(self) -> str:
        """Follow the session until it is lost. Return the cause."""
        session = self._present_session()
        following = asyncio.create_task(self._follow(session))
        ended = asyncio.create_task(self._server.ended())
        health = asyncio.create_task(self._ask_health(session))
        tasks = {following, ended, health}
        try:
            await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
            # The server's exit status is more informative than the end of its stream.
            return ended.result() if ended.done() else following.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, session: Session) -> str:
        while True:
            try:
                async with asyncio.timeout(self._patience):
                    status = await session.news()
            except TimeoutError:
                return f"the Triton server sent no message for {self._patience:g} s"
            except EngineLost as error:
                return str(error)
            if "failed" in status:
                raise EngineFailed(status["failed"])
            load = read_load(status["load"])
            load.generated_tokens += self._earlier.generated_tokens
            load.prefilled_tokens += self._earlier.prefilled_tokens
            self.load = load
            self._observe(load)

    async def _ask_health(self, session: Session) -> None:
        while True:
            self.ready = await session.ready()
            await asyncio.sleep(_HEALTH_SECONDS)

    async def _forget(self, cause: str) -> None:
        """Discard a lost session and end its server."""
        self.ready = False
        self._returned.clear()
        session, self._session = self._session, None
        # The next engine counts from zero; the totals continue.
        self._earlier = self.load = replace(self.load, running=0, waiting=0, free_sequences=0)
        if session is not None:
            session.lose(cause)
        self._losses.put_nowait(cause)
        await self._server.down()
        if session is not None:
            await session.close()

    async def _open(self) -> None:
        """Open a session with a server that is ready, retrying for `patience` seconds."""
        cause = "it has not been reached"
        try:
            async with asyncio.timeout(self._patience):
                while self._session is None:
                    address = await self._server.up()
                    try:
                        self._session = await Session.open(address, self._tls, self._opening)
                    except (EngineLost, SessionRefused) as error:
                        cause = str(error)
                        await asyncio.sleep(_AGAIN_SECONDS)
        except TimeoutError:
            raise EngineLost(
                f"the Triton server was not ready within {self._patience:g} s "
                f"(rollout.engine.triton.startTimeoutSeconds): {cause}"
                + (f"; its last error: {self._server.last_error}" if self._server.last_error else "")
            ) from None
        self.ready = True
        self._returned.set()
