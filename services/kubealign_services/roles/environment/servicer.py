"""gRPC service Environments: one stream for each episode."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from kubealign.v1 import environment_pb2, environment_pb2_grpc
from kubealign_services.environments.contract import EnvironmentFailed, observation_to_json, result_to_json
from kubealign_services.environments.pool import EnvironmentPool
from kubealign_services.runtime.rpc.errors import InvalidRequest

Reply = environment_pb2.EnvironmentReply


class EnvironmentsServicer(environment_pb2_grpc.EnvironmentsServicer):
    """gRPC service of a pool of environments.

    `sessions`: episodes in progress.

    Args:
        capacity: Most episodes at once; further ones are refused.
    """

    def __init__(self, pool: EnvironmentPool, capacity: int) -> None:
        self._pool, self._capacity = pool, capacity
        self._is_leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.sessions = 0
        #: Called after each change of `sessions`.
        self.on_change: Callable[[], None] = lambda: None

    async def Play(
        self, requests: AsyncIterator[environment_pb2.EnvironmentRequest], context: grpc.aio.ServicerContext
    ) -> None:
        if self._is_leaving or self.sessions >= self._capacity:
            await context.write(Reply(refused=True))
            return
        self._count(1)
        try:
            await self._play(requests, context)
        except EnvironmentFailed as error:
            failure = environment_pb2.EnvironmentFailure(message=str(error), permanent=error.permanent)
            await context.write(Reply(failure=failure))
        finally:
            self._count(-1)

    async def finish(self) -> None:
        """Refuse further episodes and wait until those in progress have ended."""
        self._is_leaving = True
        await self._idle.wait()

    async def _play(
        self, requests: AsyncIterator[environment_pb2.EnvironmentRequest], context: grpc.aio.ServicerContext
    ) -> None:
        first = await anext(requests, None)
        if first is None:
            return
        if not first.HasField("reset"):
            raise InvalidRequest("the first request of an episode is a step: send a reset")
        seed, columns = _parse_reset(first.reset)
        async with self._pool.open(seed, columns) as session:
            await context.write(Reply(observation=json.dumps(observation_to_json(session.observation))))
            async for request in requests:
                if not request.HasField("step"):
                    raise InvalidRequest("a request after the reset is no step: open another stream")
                result = await session.step(request.step.action)
                await context.write(Reply(step=json.dumps(result_to_json(result))))

    def _count(self, change: int) -> None:
        self.sessions += change
        if self.sessions:
            self._idle.clear()
        else:
            self._idle.set()
        self.on_change()


def _parse_reset(reset: environment_pb2.EnvironmentReset) -> tuple[int, dict[str, Any]]:
    """Return seed and columns. Raises InvalidRequest."""
    try:
        seed, columns = json.loads(reset.seed), json.loads(reset.columns)
    except ValueError as error:
        raise InvalidRequest(f"seed and columns of a reset are JSON: {error}") from error
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise InvalidRequest(f"seed is {seed!r}: it must be an integer")
    if not isinstance(columns, dict):
        raise InvalidRequest(f"columns is a {type(columns).__name__}: it must be an object")
    return seed, columns
