"""The RolloutService: the same generator as the bus worker's, called directly."""

from collections.abc import AsyncIterator

import grpc

from kubealign.v1 import batch_pb2, rollout_pb2, rollout_pb2_grpc
from kubealign_services.generation.contract import RequestRefused
from kubealign_services.refit.worker import RefitWorker
from kubealign_services.rollout.generator import Generator
from kubealign_services.rollout.messages import request_of, rollout_of
from kubealign_services.rpc.errors import InvalidRequest


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self, name: str, generator: Generator, refit: RefitWorker) -> None:
        self._name = name
        self._generator = generator
        self._refit = refit

    async def Generate(
        self, request: rollout_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[rollout_pb2.Rollout]:
        item = request.item
        await self._refit.wait_for(item.fence, item.min_version, timeout=context.time_remaining())
        try:
            async for sample in self._generator.generate(request_of(item)):
                yield rollout_of(item, sample, self._name)
        except RequestRefused as error:
            raise InvalidRequest(str(error)) from error

    async def Status(
        self, request: rollout_pb2.RolloutStatusRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.RolloutStatus:
        load = self._generator.load
        return rollout_pb2.RolloutStatus(
            worker=self._name,
            weights=self._refit.current or batch_pb2.WeightsId(),
            running=load.running,
            waiting=load.waiting,
            generated_tokens=load.generated_tokens,
            quarantined=self._refit.quarantined,
        )
