"""Scorer with the frozen teacher model of a distillation."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.worker import empty_score
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel

SOURCE = "teacher"


class NonFiniteTeacher(ArithmeticError):
    """The teacher's log-probabilities are NaN or infinite: its weights are unusable."""


class TeacherScorer:
    """Most likely tokens at each position of the responses, many sequences per packed forward pass.

    Args:
        candidates: Number of tokens per position.
        temperature: Temperature of their log-probabilities.
        vocabulary: Number of tokens in the tokenizer.
    """

    def __init__(
        self,
        worker: str,
        context: ProcessContext,
        model: FrozenTorchModel,
        candidates: int,
        temperature: float,
        vocabulary: int,
    ) -> None:
        self._worker = worker
        self._context = context
        self._model = model
        self._candidates = candidates
        self._temperature = temperature
        self._vocabulary = vocabulary

    async def __call__(self, rollouts: Sequence[rollout_pb2.Rollout]) -> list[scoring_pb2.Score]:
        """Return one score per sequence, in order; candidates as in the message."""
        started_at = time.monotonic()
        batch = concatenate([decode(rollout.sequence) for rollout in rollouts])
        scores = [empty_score(rollout, SOURCE, self._worker) for rollout in rollouts]
        try:
            tokens, logprobs = await self._context.compute(self.candidates, batch)
        except NonFiniteTeacher as error:
            for score in scores:
                score.error, score.permanent = str(error), True
            return scores
        learned = batch.token("loss_mask").bool() & (batch.positions > 0)
        for index, score in enumerate(scores):
            in_sequence = learned & (batch.sequence_of_token == index)
            score.candidates, score.candidates_digest = encode_columns(
                {"tokens": tokens[in_sequence].to(torch.int32), "logprobs": logprobs[in_sequence]}
            )
            score.seconds = (time.monotonic() - started_at) / len(rollouts)
        return scores

    def candidates(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (int64 [T, K], float32 [T, K]), 0 outside the responses. Raises NonFiniteTeacher."""
        batch.scalars["temperature"] = self._temperature
        tokens, logprobs = self._model.topk_logprobs(batch, self._candidates, self._vocabulary)
        if not bool(logprobs.isfinite().all()):
            raise NonFiniteTeacher("the teacher's log-probabilities are not finite: its weights are unusable")
        return tokens, logprobs
