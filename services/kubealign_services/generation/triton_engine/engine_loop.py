"""The thread that steps the engine inside the server: handles messages in order and answers as samples
finish.

One session owns the engine. The session begins with OPEN, whose stream stays open and receives the
engine's load; it ends with CLOSE or when its client disconnects, together with all its requests.
"""

import queue
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import RequestRefused, RolloutEngine
from kubealign_services.generation.triton_engine.messages import (
    ErrorKind,
    Op,
    error_message,
    load_fields,
    logprobs_message,
    parse_request,
    sample_fields,
)
from kubealign_services.generation.triton_engine.weights_file import read_weights

#: Seconds between two load reports, and between two checks for a disconnected client.
_HEARTBEAT_SECONDS = 0.25

#: Creates the engine for a model folder, with a number of threads. Raises ValueError, OSError.
EngineFactory = Callable[[Path, TorchEngineSpec, int | None], RolloutEngine]


class Reply(Protocol):
    """The response stream of one message.

    `send` and `close` may be called after the client has disconnected.
    """

    def send(self, message: dict[str, Any]) -> None: ...

    def close(self) -> None: ...

    def is_cancelled(self) -> bool:
        """Return True where the client has closed the stream."""


@dataclass
class _OpenGroup:
    reply: Reply
    unfinished: int


@dataclass
class _Session:
    name: str
    owner: str
    reply: Reply
    engine: RolloutEngine


class EngineLoop:
    """Runs the engine.

    `submit` may be called from any thread; `run` on the thread that may call the engine, until `stop`.
    """

    def __init__(self, create: EngineFactory) -> None:
        self._create = create
        self._incoming: queue.SimpleQueue[tuple[dict[str, Any], Reply] | None] = queue.SimpleQueue()
        self._session: _Session | None = None
        self._groups: dict[str, _OpenGroup] = {}
        self._is_paused = False
        self._last_report = 0.0
        self._is_stopped = False

    def submit(self, message: dict[str, Any], reply: Reply) -> None:
        self._incoming.put((message, reply))

    def stop(self) -> None:
        self._incoming.put(None)

    def run(self) -> None:
        """Handle messages until `stop`, then close every stream. Raises no error that a client can cause."""
        while not self._is_stopped:
            self._handle_incoming()
            session = self._session
            if session is None:
                continue
            if self._has_work:
                self._step(session)
            self._report_status(session)
        self._end_session()

    @property
    def _has_work(self) -> bool:
        return bool(self._groups) and not self._is_paused

    def _handle_incoming(self) -> None:
        """Handle incoming messages; wait for a moment where there is no other work."""
        while not self._is_stopped:
            try:
                item = self._incoming.get(timeout=0.0 if self._has_work else _HEARTBEAT_SECONDS)
            except queue.Empty:
                return
            if item is None:
                self._is_stopped = True
            else:
                self._handle(*item)
            if not self._has_work:
                return

    def _handle(self, message: dict[str, Any], reply: Reply) -> None:
        try:
            op = Op(message["op"])
            if op is Op.OPEN:
                self._open_session(message, reply)
                return
            session = self._session
            if session is None or message["session"] != session.name:
                raise _SessionLost("the engine has no such session")
            if op is Op.CLOSE:
                self._end_session()
                reply.send({"result": None})
            elif op is Op.ABORT:
                self._abort(session.engine, message["request_id"])
            elif op is Op.HOLD:
                self._is_paused = True
                reply.send({"result": None})
            elif op is Op.RELEASE:
                self._release(session.engine, message["lost"])
            elif op is Op.GENERATE:
                self._generate(session.engine, message, reply)
                return
            else:
                reply.send(self._execute(op, session.engine, message))
        except _SessionLost as error:
            reply.send(error_message(ErrorKind.LOST, str(error)))
        except RequestRefused as error:
            reply.send(error_message(ErrorKind.REQUEST, str(error)))
        except (ValueError, KeyError, TypeError, OSError) as error:
            reply.send(error_message(ErrorKind.VALUE, _error_text(error)))
        except RuntimeError as error:
            reply.send(error_message(ErrorKind.STATE, str(error)))
        reply.close()

    def _open_session(self, message: dict[str, Any], reply: Reply) -> None:
        session = self._session
        if session is not None and not session.reply.is_cancelled():
            reply.send(
                error_message(
                    ErrorKind.STATE,
                    f"{session.owner} has the engine: a server serves one worker, so each needs its own",
                )
            )
            reply.close()
            return
        self._end_session()
        try:
            spec = TorchEngineSpec.model_validate(message["engine"])
            engine = self._create(Path(message["folder"]), spec, message["threads"])
        except (ValueError, OSError) as error:
            reply.send(error_message(ErrorKind.MODEL, str(error)))
            reply.close()
            return
        name = uuid.uuid4().hex
        self._session = _Session(name, message["owner"], reply, engine)
        reply.send({"result": {"session": name}})

    def _generate(self, engine: RolloutEngine, message: dict[str, Any], reply: Reply) -> None:
        request = parse_request(message["request"])
        if engine.version < 0:
            raise _SessionLost("the engine has not received any weights yet")
        engine.add(request)
        self._groups[request.request_id] = _OpenGroup(reply, len(request.seeds))

    def _execute(self, op: Op, engine: RolloutEngine, message: dict[str, Any]) -> dict[str, Any]:
        match op:
            case Op.REFIT:
                with read_weights(Path(message["path"]), message["tensors"]) as tensors:
                    engine.refit(tensors, message["version"], InFlightPolicy(message["in_flight"]))
                return {"result": None}
            case Op.ADAPT:
                with read_weights(Path(message["path"]), message["tensors"]) as tensors:
                    in_flight = InFlightPolicy(message["in_flight"])
                    engine.adapt(tensors, message["scale"], message["version"], in_flight)
                return {"result": None}
            case Op.SEQUENCE_LOGPROBS:
                return {"result": engine.sequence_logprobs(message["tokens"])}
            case _:
                prompt = message["prompt"]
                logprobs = [
                    engine.sequence_logprobs([*prompt, *tokens])[len(prompt) - 1 :]
                    for tokens in message["continuations"]
                ]
                return logprobs_message(logprobs, engine.version)

    def _step(self, session: _Session) -> None:
        try:
            samples = session.engine.step()
        except (RuntimeError, ArithmeticError) as error:
            # The same as for an engine in the process: it is unusable, and its owner reports that and ends.
            session.reply.send({"failed": f"{type(error).__name__}: {error}"})
            self._end_session()
            return
        for sample in samples:
            group = self._groups[sample.request_id]
            group.reply.send({"sample": sample_fields(sample)})
            group.unfinished -= 1
            if not group.unfinished:
                group.reply.close()
                del self._groups[sample.request_id]
        if samples and not self._groups:
            self._send_load(session)

    def _report_status(self, session: _Session) -> None:
        now = time.monotonic()
        if now < self._last_report + _HEARTBEAT_SECONDS:
            return
        if session.reply.is_cancelled():
            self._end_session()
            return
        self._send_load(session)

    def _send_load(self, session: _Session) -> None:
        session.reply.send({"load": load_fields(session.engine.load())})
        self._last_report = time.monotonic()

    def _abort(self, engine: RolloutEngine, request_id: str) -> None:
        engine.abort(request_id)
        group = self._groups.pop(request_id, None)
        if group is not None:
            group.reply.close()

    def _release(self, engine: RolloutEngine, lost: str) -> None:
        """Resume generation, or end the paused requests.

        Args:
            lost: Reason why paused requests may not resume; empty where they may.
        """
        self._is_paused = False
        if lost:
            for request_id, group in self._groups.items():
                engine.abort(request_id)
                group.reply.send(error_message(ErrorKind.LOST, lost))
                group.reply.close()
            self._groups.clear()

    def _end_session(self) -> None:
        if self._session is None:
            return
        for group in self._groups.values():
            group.reply.close()
        self._groups.clear()
        self._is_paused = False
        self._session.reply.close()
        # Also frees the engine with its weights.
        self._session = None


class _SessionLost(Exception):
    """The session that sent the request does not own the engine, or has no weights."""


def _error_text(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
