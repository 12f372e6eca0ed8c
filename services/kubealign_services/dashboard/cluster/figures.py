"""Metrics, samples and heartbeats of jobs from the platform's Redis, over one connection pool."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from kubealign.client.errors import Unavailable
from kubealign.client.records import JobRef
from kubealign.process import RedisAccess
from kubealign.read_model import BEGINNING, ReadModel, ReadModelAway, Sample, StepMetrics

Answer = TypeVar("Answer")


class RedisFigures:
    """Reads metrics from Redis. Every method raises Unavailable while Redis is unavailable."""

    def __init__(self, access: RedisAccess) -> None:
        self._model = ReadModel(access)

    async def close(self) -> None:
        await self._model.__aexit__(None, None, None)

    async def metrics(self, ref: JobRef, after: str = BEGINNING, count: int = 1000) -> Sequence[StepMetrics]:
        return await _answered(self._of(ref).metrics(after, count))

    async def samples(
        self,
        ref: JobRef,
        after: str = BEGINNING,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[Sample]:
        return await _answered(self._of(ref).samples(after, count, step=step, newest=newest))

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return await _answered(self._of(ref).heartbeats(processes))

    def _of(self, ref: JobRef) -> ReadModel:
        return self._model.of(f"kubealign:{ref.namespace}:{ref.name}:")


class NoFigures:
    """The metrics of a platform without Redis: none."""

    async def close(self) -> None:
        return

    async def metrics(self, ref: JobRef, after: str = BEGINNING, count: int = 1000) -> Sequence[StepMetrics]:
        return ()

    async def samples(
        self,
        ref: JobRef,
        after: str = BEGINNING,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[Sample]:
        return ()

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return {}


async def _answered(call: Awaitable[Answer]) -> Answer:
    try:
        return await call
    except ReadModelAway as error:
        raise Unavailable(f"the platform's Redis is unavailable, and the job's metrics with it: {error}") from error
