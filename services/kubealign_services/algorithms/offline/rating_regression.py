"""Regression of scores to ratings."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.losses.pooling import pool_outputs
from kubealign_services.algorithms.offline.lm_loss import add_lm_loss, score_outputs
from kubealign_services.batch.packed import Batch


class RatingObjective:
    """Least-squares loss of scores against ratings.

    With the score s_in of response i for attribute n of N, and its rating r_in:

        mean over the known r_in of (s_in - r_in)^2
        + language_model_coefficient * mean over the responses' tokens of -log p(token)
        + score_penalty * mean over all s_in^2

    SteerLM's attribute models are fitted this way (Dong et al. 2023; Wang et al. 2024, HelpSteer2, section
    3). An unknown rating (NaN) is left out, so an attribute's weight is the number of its ratings.
    Reads the token column loss_mask and the sequence column ratings, [S, N], or [S] for one.
    """

    unit = 1

    def __init__(self, entry: spec.RewardModelSpec, names: Sequence[str] = ()) -> None:
        """Initialise the objective.

        Args:
            names: Attribute names for one metric each; empty: aggregate metrics only.
        """
        self._spec = entry
        self._names = names if len(names) > 1 else ()
        self.outputs = score_outputs(entry.language_model_coefficient)

    def prepare(self, minibatch: Batch) -> None:
        is_rated = (~_ratings(minibatch).isnan()).double()
        counts = is_rated.sum(0)
        minibatch.sequence_columns["rating_shares"] = is_rated / is_rated.sum().clamp(min=1)
        # Shares within each attribute; NaN for an attribute without ratings, which then has no metric.
        minibatch.sequence_columns["attribute_shares"] = is_rated / counts.where(counts > 0, torch.nan)
        minibatch.sequence_columns["score_shares"] = torch.full_like(is_rated, 1 / is_rated.numel())
        minibatch.token_columns["language_shares"] = token_mean_shares(minibatch.token("loss_mask"))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        scores = _attribute_columns(
            pool_outputs(require_output(outputs.values, "values"), microbatch, self._spec.pooling)
        )
        ratings = _ratings(microbatch).to(scores)
        if scores.shape != ratings.shape:
            raise ValueError(
                f"the model gives {scores.shape[1]} scores, and the rows hold {ratings.shape[1]} ratings"
            )
        is_rated = ~ratings.isnan()
        errors = torch.where(is_rated, scores - ratings.nan_to_num(), 0.0)
        shares = microbatch.sequence("rating_shares").to(scores)
        each = microbatch.sequence("score_shares").to(scores)
        regression = (shares * errors.square()).sum()
        size = (each * scores.square()).sum()
        loss = regression + self._spec.score_penalty * size
        sums = {
            "rm/loss": regression.detach(),
            "rm/absolute_error": (shares * errors.abs()).sum().detach(),
            "rm/score_mean": (each * scores).sum().detach(),
            "rm/score_square": size.detach(),
        }
        own = microbatch.sequence("attribute_shares").to(scores)
        for index, name in enumerate(self._names):
            error = (own[:, index] * errors[:, index].abs()).sum().detach()
            if not bool(error.isnan()):
                sums[f"rm/absolute_error/{name}"] = error
        loss = add_lm_loss(loss, sums, self._spec.language_model_coefficient, outputs, microbatch)
        return LossTerms(loss=loss, sums=sums)


def _ratings(batch: Batch) -> Tensor:
    return _attribute_columns(batch.sequence("ratings"))


def _attribute_columns(column: Tensor) -> Tensor:
    """Reshape [S] or [S, N] to [S, N]."""
    return column[:, None] if column.dim() == 1 else column
