"""A `Generator` whose engine is a model in a Triton server."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from kubealign.process_settings import TlsFiles
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.admission_gate import AdmissionGate
from kubealign_services.generation.contract import (
    EngineLoad,
    EngineLost,
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
)
from kubealign_services.generation.triton_engine.messages import Op, parse_load, parse_sample, request_fields
from kubealign_services.generation.triton_engine.server import TritonServer
from kubealign_services.generation.triton_engine.session import EngineSettings, SessionRejected, TritonSession
from kubealign_services.generation.triton_engine.weights_file import write_weights

RunInThread = Callable[..., Awaitable[Any]]

#: Seconds between two attempts to reach a server that is starting.
_RETRY_SECONDS = 0.2
_HEALTH_SECONDS = 2.0

log = logging.getLogger(__name__)


class EngineFailed(RuntimeError):
    """The engine in the server is permanently unusable; the message is the engine's own error."""


@dataclass(frozen=True)
class TritonConnection:
    """Server of a TritonGenerator.

    Args:
        timeout_seconds: Seconds for a server to become ready, to return, or to send a message.
    """

    server: TritonServer
    tls: TlsFiles
    timeout_seconds: float


class TritonGenerator:
    """A Generator over a TritonSession. A context manager, which ends the session and the server.

    `run` must be running for a dead server to be noticed and restarted. `is_ready`: Triton reports server and
    model ready, and the session is open.
    """

    def __init__(
        self,
        connection: TritonConnection,
        config: EngineSettings,
        memory_folder: Path,
        compute: RunInThread,
        observe: Callable[[EngineLoad], None] = lambda load: None,
    ) -> None:
        """Configure the generator without starting the server.

        Args:
            memory_folder: Folder on a memory file system that the server sees too, for weight transfer.
            compute: Runs long work off the event loop.
        """
        self.load = EngineLoad()
        self.is_ready = False
        self._server = connection.server
        self._tls = connection.tls
        self._config = config
        self._memory_folder = memory_folder
        self._compute = compute
        self._timeout_seconds = connection.timeout_seconds
        self._observe = observe
        # Totals counted by the earlier engines.
        self._previous_totals = EngineLoad()
        self._session: TritonSession | None = None
        self._connected = asyncio.Event()
        self._losses: asyncio.Queue[str] = asyncio.Queue()
        self._active_requests: set[str] = set()
        self._gate = AdmissionGate()
        # True once the weights may have changed within the present `paused` block.
        self._weights_touched = False

    @property
    def in_flight(self) -> int:
        return len(self._active_requests)

    async def __aenter__(self) -> Self:
        """Start the server and open the session.

        Raises EngineLost for a server that is not ready in time; ModelRejected.
        """
        await self._server.__aenter__()
        try:
            await self._open_session()
        except BaseException as error:
            await self._server.__aexit__(type(error), error, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A server with open streams does not shut down.
        self.is_ready = False
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
            cause = await self._wait_until_lost()
            log.warning("the engine was lost", extra={"cause": cause, "groups": len(self._active_requests)})
            await self._discard_session(cause)
            await self._open_session()

    async def wait_for_weight_loss(self) -> str:
        return await self._losses.get()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedSample]:
        if request.request_id in self._active_requests:
            raise RequestRefused(f"group {request.request_id} is being generated already")
        self._active_requests.add(request.request_id)
        try:
            async with self._gate.enter():
                session = self._current_session()
                missing = len(request.seeds) or 1
                try:
                    with session.call(Op.GENERATE, request=request_fields(request)) as answers:
                        while missing:
                            sample = parse_sample((await answers.next_answer())["sample"])
                            missing -= 1
                            yield sample
                except RequestRefused:
                    missing = 0
                    raise
                finally:
                    if missing:
                        session.notify(Op.ABORT, request_id=request.request_id)
        finally:
            self._active_requests.discard(request.request_id)

    @asynccontextmanager
    async def paused(self, in_flight: InFlightPolicy) -> AsyncIterator[None]:
        """Pause generation; see `Generator.paused`.

        Where the block fails after the weights were touched, paused requests end with EngineLost: none of
        their tokens is generated with unverified weights.
        """
        drained = in_flight is InFlightPolicy.DRAIN
        async with self._gate.close(drain=drained):
            # While a server is starting nothing runs, and the gate admits nothing.
            session = None if drained else self._session
            self._weights_touched = False
            lost = ""
            try:
                if session is not None:
                    with suppress(EngineLost):
                        await session.request(Op.HOLD)
                yield
            except BaseException as error:
                if self._weights_touched:
                    lost = f"a refit came to nothing under it: {error!r}"
                raise
            finally:
                if session is not None:
                    session.notify(Op.RELEASE, lost=lost)

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self._weights_touched = True
        await self._send_weights(Op.REFIT, tensors, version=version, in_flight=in_flight)

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self._weights_touched = True
        await self._send_weights(Op.ADAPT, tensors, scale=scale, version=version, in_flight=in_flight)

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        await asyncio.shield(proof)

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        session = await self._wait_for_session()
        logprobs: list[float] = await session.request(Op.SEQUENCE_LOGPROBS, tokens=tokens)
        return logprobs

    async def continuation_logprobs(
        self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]
    ) -> tuple[list[list[float]], int]:
        async with self._gate.enter():
            try:
                result = await self._current_session().request(
                    Op.CONTINUATION_LOGPROBS,
                    prompt=list(prompt),
                    continuations=[list(tokens) for tokens in continuations],
                )
            except RequestRefused:
                raise
            except ValueError as error:
                raise RequestRefused(str(error)) from error
        return result["logprobs"], int(result["version"])

    async def _send_weights(self, op: Op, tensors: Iterable[tuple[str, Tensor]], **fields: Any) -> None:
        """Transfer tensors through a file in shared memory: through the server they would be copied many
        times.
        """
        session = await self._wait_for_session()
        path = (self._memory_folder / f"{self._config.owner}.weights").absolute()
        try:
            entries = await self._compute(write_weights, path, tensors)
            await session.request(op, path=str(path), tensors=entries, **fields)
        finally:
            path.unlink(missing_ok=True)

    def _current_session(self) -> TritonSession:
        if self._session is None or self._session.lost_cause:
            raise EngineLost("the Triton server is being started again")
        return self._session

    async def _wait_for_session(self) -> TritonSession:
        """Return the session, after waiting for a server that is restarting. Raises EngineLost."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._connected.wait()
        except TimeoutError:
            raise EngineLost(f"no Triton server was ready within {self._timeout_seconds:g} s") from None
        return self._current_session()

    async def _wait_until_lost(self) -> str:
        """Follow the session until it is lost. Return the cause."""
        session = self._current_session()
        following = asyncio.create_task(self._follow_status(session))
        ended = asyncio.create_task(self._server.wait_until_ended())
        health = asyncio.create_task(self._poll_health(session))
        tasks = {following, ended, health}
        try:
            await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
            # The server's exit status is more informative than the end of its stream.
            return ended.result() if ended.done() else following.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow_status(self, session: TritonSession) -> str:
        while True:
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    status = await session.next_status()
            except TimeoutError:
                return f"the Triton server sent no message for {self._timeout_seconds:g} s"
            except EngineLost as error:
                return str(error)
            if "failed" in status:
                raise EngineFailed(status["failed"])
            load = parse_load(status["load"])
            load.generated_tokens += self._previous_totals.generated_tokens
            load.prefilled_tokens += self._previous_totals.prefilled_tokens
            self.load = load
            self._observe(load)

    async def _poll_health(self, session: TritonSession) -> None:
        while True:
            self.is_ready = await session.is_ready()
            await asyncio.sleep(_HEALTH_SECONDS)

    async def _discard_session(self, cause: str) -> None:
        """Discard a lost session and end its server."""
        self.is_ready = False
        self._connected.clear()
        session, self._session = self._session, None
        # The next engine counts from zero; the totals continue.
        self._previous_totals = self.load = replace(self.load, running=0, waiting=0, free_sequences=0)
        if session is not None:
            session.mark_lost(cause)
        self._losses.put_nowait(cause)
        await self._server.kill()
        if session is not None:
            await session.close()

    async def _open_session(self) -> None:
        """Open a session with a server that is ready, retrying for `timeout_seconds`."""
        cause = "it has not been reached"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while self._session is None:
                    address = await self._server.start()
                    try:
                        self._session = await TritonSession.open(address, self._tls, self._config)
                    except (EngineLost, SessionRejected) as error:
                        cause = str(error)
                        await asyncio.sleep(_RETRY_SECONDS)
        except TimeoutError:
            raise EngineLost(
                f"the Triton server was not ready within {self._timeout_seconds:g} s "
                f"(rollout.engine.triton.startTimeoutSeconds): {cause}"
                + (f"; its last error: {self._server.last_error}" if self._server.last_error else "")
            ) from None
        self.is_ready = True
        self._connected.set()
