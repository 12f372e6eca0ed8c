"""Episode in an environment worker: one gRPC stream, whose calls have time limits."""

import asyncio
import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign.v1 import environment_pb2
from kubealign.v1.environment_pb2_grpc import EnvironmentsStub
from kubealign_services.environments.contract import (
    EnvironmentFailed,
    Observation,
    StepResult,
    observation_from_json,
    result_from_json,
)
from kubealign_services.environments.environment_process import START_SECONDS
from kubealign_services.environments.factory import describe_environment
from kubealign_services.telemetry.tracing import trace_metadata

#: Beyond the worker's own time limit, whose error names the environment's call.
_MARGIN_SECONDS = 10.0
#: Time limit of the end of an episode; nothing depends on it.
_CLOSE_SECONDS = 10.0


class SessionRefused(Exception):
    """The worker has no capacity left, or is leaving."""


class WorkerLost(EnvironmentFailed):
    """The connection to the worker broke, or it did not answer within the time limit."""


class RemoteSession:
    """Environment of one episode in another process. `observation`: the first one, after `reset`.

    Args:
        worker: Name and address of the environment worker, for errors.
    """

    def __init__(self, spec: EnvironmentSpec, worker: str, channel: grpc.aio.Channel) -> None:
        self._spec = spec
        self.worker = worker
        self._label = describe_environment(spec)
        stub: Callable[[grpc.aio.Channel], Any] = EnvironmentsStub
        self._call = stub(channel).Play(metadata=trace_metadata())
        self.observation = Observation()

    async def reset(self, seed: int, columns: Mapping[str, Any]) -> None:
        """Begin the episode.

        Raises:
            SessionRefused: The worker accepts no episode now.
            WorkerLost: The worker did not answer; another one may begin the episode.
            EnvironmentFailed: The environment cannot be created or reset.
        """
        reset = environment_pb2.EnvironmentReset(seed=json.dumps(seed), columns=json.dumps(dict(columns)))
        # A process of the worker that was lost is started again first.
        seconds = START_SECONDS + self._spec.reset_timeout_seconds + _MARGIN_SECONDS
        reply = await self._exchange(environment_pb2.EnvironmentRequest(reset=reset), seconds, "the reset")
        if reply.refused:
            raise SessionRefused(self.worker)
        self.observation = observation_from_json(json.loads(reply.observation))

    async def step(self, action: str) -> StepResult:
        """Apply an action. Raises EnvironmentFailed."""
        step = environment_pb2.EnvironmentStep(action=action)
        seconds = self._spec.step_timeout_seconds + _MARGIN_SECONDS
        reply = await self._exchange(environment_pb2.EnvironmentRequest(step=step), seconds, "a step")
        return result_from_json(json.loads(reply.step))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the episode and wait until the worker has closed its environment, or for some seconds; after an
        error, end it at once.
        """
        if error is not None:
            self._call.cancel()
            return
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._call.done_writing()
                await self._call.code()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The worker closes the environment of a stream that ends in any way.
            self._call.cancel()

    async def _exchange(
        self, request: environment_pb2.EnvironmentRequest, seconds: float, name: str
    ) -> environment_pb2.EnvironmentReply:
        """Send a request and return its reply. Raises WorkerLost, EnvironmentFailed."""
        try:
            async with asyncio.timeout(seconds):
                await self._call.write(request)
                reply = await self._call.read()
                if reply is grpc.aio.EOF:
                    raise self._lost(f"the stream ended before the answer to {name}")
        except TimeoutError:
            self._call.cancel()
            raise self._lost(f"{name} was not answered within {seconds:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise self._lost(error.details() or error.code().name) from None
        except asyncio.InvalidStateError:
            # The stream had ended before the request.
            raise self._lost(await self._call.details() or "the stream had ended") from None
        if reply.HasField("failure"):
            failure = reply.failure
            raise EnvironmentFailed(f"{failure.message} (in {self.worker})", permanent=failure.permanent)
        return reply  # type: ignore[no-any-return]

    def _lost(self, cause: str) -> WorkerLost:
        return WorkerLost(f"{self._label}: {self.worker} was lost during the episode: {cause}")
