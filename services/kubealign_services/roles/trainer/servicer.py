"""gRPC service Trainer: passes each call to the group of ranks."""

import grpc

from kubealign.v1 import refit_pb2, trainer_pb2_grpc, training_pb2
from kubealign_services.training.commands.servicer import TrainedModelServicer


class TrainerServicer(TrainedModelServicer, trainer_pb2_grpc.TrainerServicer):
    """gRPC service of the trainer, served by rank 0."""

    async def Evaluate(
        self, request: training_pb2.EvaluateRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.EvaluateReply:
        return await self._commander.run("Evaluate", request, training_pb2.EvaluateReply)

    async def Logprobs(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._commander.run("Forward", request, training_pb2.ForwardReply)

    async def ReferenceLogprobs(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._commander.run("ReferenceLogprobs", request, training_pb2.ForwardReply)

    async def Export(
        self, request: training_pb2.ExportRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ExportReply:
        return await self._commander.export(request)

    async def PublishWeights(
        self, request: refit_pb2.PublishWeightsRequest, context: grpc.aio.ServicerContext
    ) -> refit_pb2.WeightsAnnouncement:
        return await self._commander.run("PublishWeights", request, refit_pb2.WeightsAnnouncement)
