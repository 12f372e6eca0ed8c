"""The reference that lives with the trainer: the same calls as the reference role's, without a process of
its own."""

from kubealign.v1 import training_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.training.core import TrainingCore
from kubealign_services.training.torch_backend.frozen import FrozenModel


class ReferenceCommand:
    """The ReferenceLogprobs command. Between calls the model rests on the CPU."""

    def __init__(self, core: TrainingCore, model: FrozenModel) -> None:
        self._core = core
        self._model = model.offload()

    def __call__(self, request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        self._core.check_fence(request.fence)
        logprobs = self._model.forward(decode(request.batch), frozenset({"logprobs"}))["logprobs"]
        self._model.offload()
        columns, digest = encode_columns({"token.logprobs": logprobs})
        return training_pb2.ForwardReply(columns=columns, digest=digest)
