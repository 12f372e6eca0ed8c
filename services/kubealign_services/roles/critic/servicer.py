"""gRPC service Critic: passes each call to the group of ranks."""

import grpc

from kubealign.v1 import critic_pb2_grpc, training_pb2
from kubealign_services.training.commands.server import CommandDispatcher


class CriticServicer(critic_pb2_grpc.CriticServicer):
    """gRPC service of the critic, served by rank 0. The server's interceptor maps errors to status codes."""

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

    async def Values(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._commander.run("Forward", request, training_pb2.ForwardReply)

    async def Score(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._commander.run("Score", request, training_pb2.ForwardReply)

    async def Save(
        self, request: training_pb2.SaveRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.SaveReply:
        return await self._commander.save(request)
