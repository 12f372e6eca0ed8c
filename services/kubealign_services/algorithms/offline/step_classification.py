"""Classification of the steps of responses, which trains process reward models."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import token_mean_shares
from kubealign_services.algorithms.offline.lm_loss import add_lm_loss, score_outputs
from kubealign_services.batch.packed import Batch


class StepObjective:
    """Binary cross-entropy of the steps' scores against their labels.

    With the score s_j at the last token of step j, of all J labelled steps of the minibatch, and its label
    y_j:

        mean over j of -y_j log sigmoid(s_j) - (1 - y_j) log sigmoid(-s_j)
        + language_model_coefficient * mean over the responses' tokens of -log p(token)
        + score_penalty * mean over j of s_j^2

    Process reward models are trained this way (Lightman et al. 2023; Wang et al. 2024, Math-Shepherd,
    equation 3). Each labelled step has the same weight, whatever the length of its response. Reads the token
    columns loss_mask and step_labels, NaN where there is no label.
    """

    unit = 1

    def __init__(self, entry: spec.RewardModelSpec) -> None:
        self._spec = entry
        self.outputs = score_outputs(entry.language_model_coefficient)

    def prepare(self, minibatch: Batch) -> None:
        is_labelled = (~minibatch.token("step_labels").isnan()).double()
        minibatch.token_columns["step_shares"] = is_labelled / is_labelled.sum().clamp(min=1)
        minibatch.token_columns["language_shares"] = token_mean_shares(minibatch.token("loss_mask"))

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        values = require_output(outputs.values, "values")
        if values.dim() != 1:
            raise ValueError(
                f"the model gives {values.shape[1]} scores; a step has one, the logit of being right"
            )
        labels = microbatch.token("step_labels").to(values)
        is_labelled = ~labels.isnan()
        scores, labels = values[is_labelled], labels[is_labelled]
        shares = microbatch.token("step_shares").to(values)[is_labelled]
        classification = (shares * binary_cross_entropy_with_logits(scores, labels, reduction="none")).sum()
        size = (shares * scores.square()).sum()
        loss = classification + self._spec.score_penalty * size
        sums = {
            "rm/loss": classification.detach(),
            "rm/accuracy": (shares * ((scores > 0) == (labels > 0.5))).sum(),
            "rm/step_probability": (shares * torch.sigmoid(scores)).sum().detach(),
            "rm/step_label": (shares * labels).sum(),
            "rm/score_square": size.detach(),
        }
        loss = add_lm_loss(loss, sums, self._spec.language_model_coefficient, outputs, microbatch)
        return LossTerms(loss=loss, sums=sums)
