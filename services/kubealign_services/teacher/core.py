"""The frozen model that is imitated."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.process.context import Context
from kubealign_services.scoring.worker import score_for
from kubealign_services.training.torch_backend.frozen import FrozenModel

SOURCE = "teacher"


class NonFiniteTeacher(ArithmeticError):
    """The teacher's log-probabilities are NaN or infinite: its weights are of no use."""


class TeacherScorer:
    """The likeliest tokens at each place of the responses, many sequences in one packed forward pass.

    candidates: how many. temperature: of their log-probabilities. vocabulary: the tokens that there are.
    """

    def __init__(
        self,
        worker: str,
        context: Context,
        model: FrozenModel,
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
        """One score a sequence, in their order; candidates as in the message."""
        begun = time.monotonic()
        batch = concatenate([decode(rollout.sequence) for rollout in rollouts])
        scores = [score_for(rollout, SOURCE, self._worker) for rollout in rollouts]
        try:
            tokens, logprobs = await self._context.compute(self.candidates, batch)
        except NonFiniteTeacher as error:
            for score in scores:
                score.error, score.permanent = str(error), True
            return scores
        learned = batch.token("loss_mask").bool() & (batch.positions > 0)
        which = batch.sequence_of_token
        for index, score in enumerate(scores):
            places = learned & (which == index)
            score.candidates, score.candidates_digest = encode_columns(
                {"tokens": tokens[places].to(torch.int32), "logprobs": logprobs[places]}
            )
            score.seconds = (time.monotonic() - begun) / len(rollouts)
        return scores

    def candidates(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(int64 [T, K], float32 [T, K]), 0 outside the responses. Raises NonFiniteTeacher."""
        batch.scalars["temperature"] = self._temperature
        tokens, logprobs = self._model.likeliest(batch, self._candidates, self._vocabulary)
        if not bool(logprobs.isfinite().all()):
            raise NonFiniteTeacher(
                "the teacher's log-probabilities are not finite: its weights are of no use"
            )
        return tokens, logprobs
