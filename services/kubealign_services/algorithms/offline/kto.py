"""KTO: Kahneman-Tversky optimisation."""

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import sequence_shares
from kubealign_services.algorithms.losses.sequence_logprobs import pairwise_accuracy, response_logprobs
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.batch.auxiliary_sequences import IS_BASELINE
from kubealign_services.batch.packed import Batch

_BASELINE = "kl_baseline"


class KTOObjective:
    """Mean over sequences of w (1 - sigmoid(v)), see KTOAlgorithm.

    Reads the token columns loss_mask and reference_logprobs, the sequence column label and the scalar
    kl_baseline.
    """

    outputs = frozenset({"logprobs"})
    unit = 1

    def __init__(self, entry: spec.KTOSpec) -> None:
        self._spec = entry

    def prepare(self, minibatch: Batch) -> None:
        minibatch.sequence_columns["sequence_shares"] = sequence_shares(minibatch)
        good = minibatch.sequence("label") != 0
        for name, kind in (("good_shares", good), ("bad_shares", ~good)):
            minibatch.sequence_columns[name] = kind.double() / kind.sum().clamp(min=1)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        policy = response_logprobs(require_output(outputs.logprobs, "logprobs"), microbatch, reference=True)

        def column(name: str) -> Tensor:
            return microbatch.sequence(name).to(policy.logprob)

        share, good_share, bad_share = (column(f"{kind}_shares") for kind in ("sequence", "good", "bad"))
        good = microbatch.sequence("label").to(policy.logprob.device) != 0
        reward = self._spec.beta * policy.log_ratio
        advantage = reward - self._spec.beta * microbatch.scalars[_BASELINE]
        value = torch.where(good, advantage, -advantage)
        weight = torch.where(
            good,
            value.new_tensor(self._spec.desirable_weight),
            value.new_tensor(self._spec.undesirable_weight),
        )
        loss = (share * weight * (1 - value.sigmoid())).sum()
        detached_reward = reward.detach()
        sums = {
            "preference/loss": loss.detach(),
            "preference/accuracy": (share * pairwise_accuracy(value.detach())).sum(),
            "preference/margin": ((good_share - bad_share) * detached_reward).sum(),
            "preference/chosen_reward": (good_share * detached_reward).sum(),
            "preference/rejected_reward": (bad_share * detached_reward).sum(),
            "preference/chosen_logprob": (good_share * policy.mean_logprob.detach()).sum(),
            "preference/rejected_logprob": (bad_share * policy.mean_logprob.detach()).sum(),
            "preference/chosen_lost": (good_share * (detached_reward < 0)).sum(),
        }
        return LossTerms(loss, sums)


class KTOAlgorithm(OfflineAlgorithm):
    """Ethayarajh et al. 2024, "KTO: Model Alignment as Prospect Theoretic Optimization", eq.

    7 and 8, from single responses that are good or bad:

        r(y) = log p(y) - log p_ref(y)        z = max(0, mean over mismatched y' of r(y'))
        loss = desirableWeight   * (1 - sigmoid(beta (r(y) - z)))    of a good response
               undesirableWeight * (1 - sigmoid(beta (z - r(y))))    of a bad one

    z estimates KL(policy || reference), the reference point for gains and losses: from each row's prompt
    with another row's response, over the whole step, before the update, without gradient.
    """

    needs_reference = True
    needs_old_logprobs = True

    def __init__(self, entry: spec.KTOSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> KTOObjective:
        return KTOObjective(self._spec)

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add the scalar kl_baseline, nats per response.

        Reads the token columns loss_mask, old_logprobs and reference_logprobs and the sequence column
        companion, not 0 for the mismatched pairs. Raises ValueError without a mismatched pair.
        """
        mismatched = batch.sequence(IS_BASELINE) != 0
        if not bool(mismatched.any()):
            raise ValueError("the KL baseline needs mismatched pairs, and the batch has none")
        ratios = response_logprobs(batch.token("old_logprobs"), batch, reference=True).log_ratio[mismatched]
        batch.scalars[_BASELINE] = max(0.0, float(ratios.double().mean()))
        return {"preference/kl_baseline": batch.scalars[_BASELINE]}
