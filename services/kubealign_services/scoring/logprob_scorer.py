"""Scorer with a frozen model whose log-probabilities judge the sampled tokens: a reference, or a teacher."""

from collections.abc import Sequence

import grpc
from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2, scoring_pb2_grpc, training_pb2
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import rollout_temperature, set_temperatures
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.frozen_scorer import FrozenScorer, split_by_rollout
from kubealign_services.training.contract import ScoringBackend

_LOGPROBS = frozenset({"logprobs"})


class LogprobScorer(FrozenScorer):
    """Log-probabilities of rollouts' tokens, each rollout at the temperature that it was sampled with.

    A subclass states the source of its scores.

    Args:
        default_temperature: Temperature of rollouts that state none.
        teacher_prompts: Prompts in place of those that the policy read; None: the same prompts.
    """

    def __init__(
        self,
        context: ProcessContext,
        model: ScoringBackend,
        default_temperature: float,
        teacher_prompts: TeacherPrompts | None = None,
    ) -> None:
        super().__init__(context, model)
        self._teacher_prompts = teacher_prompts
        self._default_temperature = default_temperature

    def make_batch(self, rollouts: Sequence[rollout_pb2.Rollout]) -> Batch:
        batch = super().make_batch(rollouts)
        temperatures = [rollout_temperature(rollout, self._default_temperature) for rollout in rollouts]
        counts = map(len, split_by_rollout(rollouts))
        set_temperatures(
            batch,
            [each for each, count in zip(temperatures, counts, strict=True) for _ in range(count)],
        )
        return batch

    def compute_columns(self, batch: Batch) -> dict[str, Tensor]:
        """Return logprobs at the batch's temperatures, float32 [T]; 0 at the tokens of replaced prompts.

        Raises PromptMismatch.
        """
        if self._teacher_prompts is None:
            return self._model.forward(batch, _LOGPROBS)
        replaced = self._teacher_prompts.replace(batch)
        logprobs = self._model.forward(replaced.batch, _LOGPROBS)["logprobs"]
        return {"logprobs": replaced.restore(logprobs)}

    def write_score(self, score: scoring_pb2.Score, sequence: Batch) -> None:
        """Write logprobs, float32 little-endian, one value per token."""
        score.logprobs = sequence.token("logprobs").numpy().astype("<f4").tobytes()


class LogprobServicer(scoring_pb2_grpc.ReferenceServicer):
    """gRPC service Reference: direct calls of the bus worker's model."""

    def __init__(self, scorer: FrozenScorer) -> None:
        self._scorer = scorer

    async def Logprobs(
        self, request: training_pb2.ForwardRequest, context: grpc.aio.ServicerContext
    ) -> training_pb2.ForwardReply:
        return await self._scorer.forward(request)
