"""Reference log-probabilities from the trainer's process, with the same calls as the reference role's."""

from torch import Tensor

from kubealign.v1 import training_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.training.commands.command_executor import TrainingCore
from kubealign_services.training.contract import FrozenBackend

_LOGPROBS = frozenset({"logprobs"})


class ReferenceLogprobsCommand:
    """ReferenceLogprobs command. Between calls the model is offloaded to the CPU."""

    def __init__(self, core: TrainingCore, model: FrozenBackend) -> None:
        self._core = core
        self._model = model
        model.offload()

    def __call__(self, request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        self._core.check_fence(request.fence)
        columns = self._model.forward(decode(request.batch), _LOGPROBS)
        self._model.offload()
        return _encode_reply(columns)


class AdapterOffLogprobsCommand:
    """ReferenceLogprobs command where the reference is the policy without its adapter, so no second model
    exists.
    """

    def __init__(self, core: TrainingCore) -> None:
        self._core = core

    def __call__(self, request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        self._core.check_fence(request.fence)
        return _encode_reply(self._core.backend.base_forward(decode(request.batch), _LOGPROBS))


def _encode_reply(columns: dict[str, Tensor]) -> training_pb2.ForwardReply:
    blob, digest = encode_columns({"token.logprobs": columns["logprobs"]})
    return training_pb2.ForwardReply(columns=blob, digest=digest)
