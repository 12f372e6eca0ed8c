"""Scorer with the frozen teacher model of a distillation."""

import torch
from torch import Tensor

from kubealign.v1 import scoring_pb2
from kubealign_services.batch.codec import encode_columns
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.frozen_scorer import FrozenScorer, NonFiniteScores
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel


class TeacherScorer(FrozenScorer):
    """Most likely tokens at each position of the responses.

    Args:
        candidates: Number of tokens per position.
        temperature: Temperature of their log-probabilities.
        vocabulary: Number of tokens in the tokenizer.
    """

    source = "teacher"

    def __init__(
        self,
        context: ProcessContext,
        model: FrozenTorchModel,
        candidates: int,
        temperature: float,
        vocabulary: int,
    ) -> None:
        super().__init__(context, model)
        self._candidates = candidates
        self._temperature = temperature
        self._vocabulary = vocabulary

    def compute_columns(self, batch: Batch) -> dict[str, Tensor]:
        """Return candidates (int64 [T, K]) and candidate_logprobs (float32 [T, K]), 0 outside the responses.

        Raises NonFiniteScores.
        """
        set_temperatures(batch, [self._temperature] * len(batch))
        tokens, logprobs = self._model.topk_logprobs(batch, self._candidates, self._vocabulary)
        if not bool(logprobs.isfinite().all()):
            raise NonFiniteScores("the teacher's log-probabilities are not finite: its weights are unusable")
        return {"candidates": tokens, "candidate_logprobs": logprobs}

    def write_score(self, score: scoring_pb2.Score, sequence: Batch) -> None:
        """Write candidates as in the message, for the tokens of the response."""
        in_response = sequence.token("loss_mask").bool() & (sequence.positions > 0)
        score.candidates, score.candidates_digest = encode_columns(
            {
                "tokens": sequence.token("candidates")[in_response].to(torch.int32),
                "logprobs": sequence.token("candidate_logprobs")[in_response],
            }
        )
