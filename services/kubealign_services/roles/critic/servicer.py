"""gRPC service Critic: passes each call to the group of ranks."""

import grpc

from kubealign.v1 import critic_pb2_grpc, training_pb2
from kubealign_services.training.commands.servicer import TrainedModelServicer


class CriticServicer(TrainedModelServicer, critic_pb2_grpc.CriticServicer):
    """gRPC service of the critic, served by rank 0."""

    async def Values(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._commander.run("Forward", request, training_pb2.ForwardReply)

    async def Score(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._commander.run("Score", request, training_pb2.ForwardReply)
