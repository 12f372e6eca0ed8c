"""gRPC service RolloutService: direct calls of the bus worker's generator."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc

from kubealign.v1 import batch_pb2, rollout_pb2, rollout_pb2_grpc
from kubealign_services.generation.contract import EngineLost, Generator, RequestRefused
from kubealign_services.roles.rollout.messages import split_into_parts
from kubealign_services.roles.rollout.sample_producers import SampleProducer
from kubealign_services.roles.rollout.weights import WorkerWeights
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.runtime.rpc.errors import InvalidRequest, Unreachable
from kubealign_services.scoring.functions.errors import RewardError


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """gRPC service of a rollout worker."""

    def __init__(
        self, name: str, generator: Generator, weights: WorkerWeights, samples: SampleProducer
    ) -> None:
        self._samples = samples
        self._name = name
        self._generator = generator
        self._weights = weights

    async def Generate(
        self, request: rollout_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[rollout_pb2.Rollout]:
        item = request.item
        remaining = context.time_remaining()
        deadline = None if remaining is None else time.monotonic() + remaining
        await self._weights.wait_for_version(item.fence, item.min_version, timeout=remaining)
        try:
            for part in split_into_parts(item):
                async with aclosing(self._samples.make(item, part, deadline)) as samples:
                    async for rollout in samples:
                        yield rollout
        except (RequestRefused, WorkflowFailed, RewardError) as error:
            raise InvalidRequest(str(error)) from error
        except EngineLost as error:
            raise Unreachable(str(error)) from error

    async def Status(
        self, request: rollout_pb2.RolloutStatusRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.RolloutStatus:
        load = self._generator.load
        return rollout_pb2.RolloutStatus(
            worker=self._name,
            weights=self._weights.current or batch_pb2.WeightsId(),
            running=load.running,
            waiting=load.waiting,
            generated_tokens=load.generated_tokens,
            quarantined=self._weights.quarantined,
        )
