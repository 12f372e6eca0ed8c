"""The methods that the gRPC services Trainer and Critic share."""

import grpc

from kubealign.v1 import training_pb2
from kubealign_services.training.commands.server import CommandDispatcher


class TrainedModelServicer:
    """Passes the calls that every trained model answers to the group of ranks.

    Served by rank 0. A subclass adds the calls of its service. The server's interceptor maps errors to status
    codes.
    """

    def __init__(self, commander: CommandDispatcher) -> None:
        self._commander = commander

    async def Describe(
        self, request: training_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.TrainingState:
        return await self._commander.run("Describe", request, training_pb2.TrainingState)

    async def Load(
        self, request: training_pb2.LoadRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.TrainingState:
        return await self._commander.run("Load", request, training_pb2.TrainingState)

    async def TrainStep(
        self, request: training_pb2.TrainStepRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.TrainStepReply:
        return await self._commander.run("TrainStep", request, training_pb2.TrainStepReply)

    async def Save(
        self, request: training_pb2.SaveRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.SaveReply:
        return await self._commander.save(request)
