"""Reward model training, from preferences, from ratings or from labels of steps."""

from collections.abc import Sequence

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective, require_output
from kubealign_services.algorithms.losses.loss_weights import sequence_shares, token_mean_shares
from kubealign_services.algorithms.losses.pooling import pool_outputs
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.lm_loss import add_lm_loss, score_outputs
from kubealign_services.algorithms.offline.pairwise import bradley_terry_loss
from kubealign_services.algorithms.offline.rating_regression import RatingObjective
from kubealign_services.algorithms.offline.step_classification import StepObjective
from kubealign_services.batch.packed import Batch


class PreferenceObjective:
    """Bradley-Terry loss with optional regularisation.

        mean over pairs of -log sigmoid(chosen - rejected)
        + language_model_coefficient * mean over the chosen responses' tokens of -log p(token)
        + score_penalty * mean over sequences of score^2

    Sequences come as consecutive pairs: chosen, rejected. Reads the token column loss_mask.
    """

    unit = 2

    def __init__(self, entry: spec.RewardModelSpec) -> None:
        self._spec = entry
        self.outputs = score_outputs(entry.language_model_coefficient)

    def prepare(self, minibatch: Batch) -> None:
        if len(minibatch) % 2 != 0:
            raise ValueError(f"preferences come in pairs of sequences, and there are {len(minibatch)}")
        chosen = torch.arange(len(minibatch)) % 2 == 0
        minibatch.sequence_columns["sequence_shares"] = sequence_shares(minibatch)
        minibatch.token_columns["language_shares"] = token_mean_shares(
            minibatch.token("loss_mask").bool() & chosen[minibatch.sequence_of_token]
        )

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        scores = pool_outputs(require_output(outputs.values, "values"), microbatch, self._spec.pooling)
        chosen, rejected = scores[0::2], scores[1::2]
        each = microbatch.sequence("sequence_shares").to(scores)
        pair = each[0::2] + each[1::2]
        preference = (pair * bradley_terry_loss(chosen, rejected)).sum()
        size = (each * scores.square()).sum()
        loss = preference + self._spec.score_penalty * size
        sums = {
            "rm/loss": preference.detach(),
            "rm/accuracy": (pair * (chosen > rejected)).sum(),
            "rm/margin": (pair * (chosen - rejected)).sum().detach(),
            "rm/chosen_mean": (pair * chosen).sum().detach(),
            "rm/rejected_mean": (pair * rejected).sum().detach(),
            "rm/score_square": size.detach(),
        }
        loss = add_lm_loss(loss, sums, self._spec.language_model_coefficient, outputs, microbatch)
        return LossTerms(loss=loss, sums=sums)


class RewardModelAlgorithm(OfflineAlgorithm):
    """Score heads on a language model (Ouyang et al. 2022, step 2): one from preferences by Bradley-Terry,
    one for each rated attribute, by least squares, or one for the steps of responses, by classification.
    Scores of responses are pooled as the spec says: at the last token, or summed over the response.
    """

    def __init__(self, entry: spec.RewardModelSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> Objective:
        return self.score_objective(())

    def score_objective(self, names: Sequence[str]) -> Objective:
        if self._spec.objective.bradley_terry is not None:
            return PreferenceObjective(self._spec)
        if self._spec.scores_steps:
            return StepObjective(self._spec)
        return RatingObjective(self._spec, names)
