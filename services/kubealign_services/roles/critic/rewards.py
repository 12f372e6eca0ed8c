"""Reward models hosted by the critic, which return the same scores as the reward role's."""

from collections.abc import Mapping

from kubealign.v1 import training_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.reward_models import ModelReward
from kubealign_services.training.commands.command_executor import TrainingCore


class ScoreCommand:
    """Score command. Between calls the models are offloaded to the CPU."""

    def __init__(self, core: TrainingCore, models: Mapping[str, ModelReward]) -> None:
        self._core = core
        self._models = models
        for model in models.values():
            model.offload()

    def __call__(self, request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        """Return sequence.NAME (float32 [S]) for each name in the request's outputs."""
        self._core.check_fence(request.fence)
        unknown = sorted(set(request.outputs) - self._models.keys())
        if unknown:
            raise InvalidRequest(
                f"the critic has no reward model {', '.join(unknown)}; there are {sorted(self._models)}"
            )
        batch = decode(request.batch)
        scores = {}
        for name in request.outputs:
            scores[f"sequence.{name}"] = self._models[name].score(batch)
            self._models[name].offload()
        columns, digest = encode_columns(scores)
        return training_pb2.ForwardReply(columns=columns, digest=digest)
