"""Scorer with the frozen reference model of the KL penalty."""

import time
from collections.abc import Sequence

from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.worker import empty_score
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel

SOURCE = "reference"


class ReferenceScorer:
    """Log-probabilities of rollouts' tokens at the sampling temperature, many rollouts per packed forward
    pass.
    """

    def __init__(
        self, worker: str, context: ProcessContext, model: FrozenTorchModel, temperature: float
    ) -> None:
        self._worker = worker
        self._context = context
        self._model = model
        self._temperature = temperature

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per rollout, in order; logprobs is float32 little-endian, one value per token."""
        started_at = time.monotonic()
        batch = concatenate([decode(rollout.sequence) for rollout in rollouts])
        batch.scalars["temperature"] = self._temperature
        logprobs = await self._context.compute(self.logprobs, batch)
        scores = []
        offsets = batch.cu_seqlens.tolist()
        for index, rollout in enumerate(rollouts):
            score = empty_score(rollout, SOURCE, self._worker)
            score.logprobs = logprobs[offsets[index] : offsets[index + 1]].numpy().astype("<f4").tobytes()
            score.seconds = (time.monotonic() - started_at) / len(rollouts)
            scores.append(score)
        return scores

    def logprobs(self, batch: Batch) -> Tensor:
        """Return log-probabilities at the batch's temperature, float32 [T]."""
        return self._model.forward(batch, frozenset({"logprobs"}))["logprobs"]
