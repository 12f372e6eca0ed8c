"""gRPC services of trained models: every method is a command of the group."""

from typing import Any, cast

import pytest
from google.protobuf.message import Message

from kubealign.v1 import critic_pb2, critic_pb2_grpc, trainer_pb2, trainer_pb2_grpc, training_pb2
from kubealign_services.roles.critic.servicer import CriticServicer
from kubealign_services.roles.trainer.servicer import TrainerServicer
from kubealign_services.training.commands.server import CommandDispatcher
from kubealign_services.training.commands.servicer import TrainedModelServicer

SERVICES: list[Any] = [
    pytest.param(TrainerServicer, trainer_pb2_grpc.TrainerServicer, trainer_pb2, id="Trainer"),
    pytest.param(CriticServicer, critic_pb2_grpc.CriticServicer, critic_pb2, id="Critic"),
]


class Dispatcher:
    """Records the commands and returns empty replies."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, Message]] = []

    async def run(self, name: str, request: Message, reply_type: type[Message]) -> Message:
        self.commands.append((name, request))
        return reply_type()

    async def save(self, request: training_pb2.SaveRequest) -> Message:
        return await self.run("Save", request, training_pb2.SaveReply)

    async def export(self, request: training_pb2.ExportRequest) -> Message:
        return await self.run("Export", request, training_pb2.ExportReply)


@pytest.mark.parametrize(("servicer", "generated", "module"), SERVICES)
async def test_every_method_is_a_command(
    servicer: type[TrainedModelServicer], generated: type, module: Any
) -> None:
    (service,) = module.DESCRIPTOR.services_by_name.values()
    dispatcher = Dispatcher()
    served = servicer(cast(CommandDispatcher, dispatcher))
    assert isinstance(served, generated)
    for method in service.methods:
        request = method.input_type._concrete_class(fence=7)
        reply = await getattr(served, method.name)(request, None)
        assert reply.DESCRIPTOR is method.output_type
        name, passed = dispatcher.commands.pop()
        assert passed is request
        # Only log-probabilities and values are called differently on the wire and in the group.
        assert name == {"Logprobs": "Forward", "Values": "Forward"}.get(method.name, method.name)
