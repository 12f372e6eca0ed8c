"""Scorers with the frozen teacher model of a distillation."""

import torch
from torch import Tensor

from kubealign.spec.algorithms import TeacherDistribution
from kubealign.v1 import scoring_pb2
from kubealign_services.batch.codec import encode_columns
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.temperatures import set_temperatures
from kubealign_services.data.teacher_prompts import TeacherPrompts
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.scoring.frozen_scorer import FrozenScorer, NonFiniteScores
from kubealign_services.scoring.logprob_scorer import LogprobScorer
from kubealign_services.training.contract import ScoringBackend


class TeacherScorer(FrozenScorer):
    """Most likely tokens at each position of the responses.

    Args:
        distribution: Number of tokens per position, and the temperature of their log-probabilities.
        vocabulary: Number of tokens in the tokenizer.
        teacher_prompts: Prompts in place of those that the policy read; None: the same prompts.
    """

    source = "teacher"

    def __init__(
        self,
        context: ProcessContext,
        model: ScoringBackend,
        distribution: TeacherDistribution,
        vocabulary: int,
        teacher_prompts: TeacherPrompts | None = None,
    ) -> None:
        super().__init__(context, model)
        self._distribution = distribution
        self._vocabulary = vocabulary
        self._teacher_prompts = teacher_prompts

    def compute_columns(self, batch: Batch) -> dict[str, Tensor]:
        """Return candidates (int64 [T, K]) and candidate_logprobs (float32 [T, K]), 0 outside the responses.

        Raises NonFiniteScores, PromptMismatch.
        """
        set_temperatures(batch, [self._distribution.temperature] * len(batch))
        replaced = None if self._teacher_prompts is None else self._teacher_prompts.replace(batch)
        read = batch if replaced is None else replaced.batch
        tokens, logprobs = self._model.topk_logprobs(read, self._distribution.candidates, self._vocabulary)
        if replaced is not None:
            tokens, logprobs = replaced.restore(tokens), replaced.restore(logprobs)
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


class TeacherLogprobScorer(LogprobScorer):
    """Log-probabilities of the sampled tokens, of one of several teachers without a distribution."""

    source = "teacher"
