"""XPO: online DPO against samples of the reference, with an exploration bonus."""

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import sequence_shares
from kubealign_services.algorithms.losses.sequence_logprobs import response_logprobs
from kubealign_services.algorithms.offline.pairwise import PairLossFunction
from kubealign_services.algorithms.online.online_dpo import (
    PREFERENCE,
    OnlineDPOAlgorithm,
    SampledPairObjective,
)
from kubealign_services.algorithms.online.pair_selection import CHOSEN
from kubealign_services.batch.auxiliary_sequences import trainable_mask
from kubealign_services.batch.packed import Batch

_FROM_REFERENCE, _BONUS_SHARES, _PAIRED_SHARE = "from_reference", "bonus_shares", "paired_share"


class XPOAlgorithm(OnlineDPOAlgorithm):
    """Xie et al. 2024, "Exploratory Preference Optimization: Harnessing Implicit Q*-Approximation for
    Sample-Efficient RLHF", algorithm 1, with rewards in place of preferences and without the pairs of earlier
    steps.

    For each of P prompts one response y is sampled from the policy and one, y', from the reference. The one
    with the higher reward is the chosen (c), the other one the rejected (r):

        loss = (1 / P) sum over the prompts of
                   -log sigmoid(beta (log p(c) / p_ref(c) - log p(r) / p_ref(r)))  +  alpha log p(y')

    or IPO's loss of the pair. Two responses of equal rewards are no pair: the first term is 0, and the second
    stays. No gradient flows through the sampling. The responses of the reference arrive as auxiliary
    sequences, so that the metrics of rewards and responses are those of the policy's.
    """

    def __init__(self, entry: spec.XPOSpec) -> None:
        super().__init__(entry)
        self._alpha = entry.alpha

    def policy_objective(self) -> "ExploringPairObjective":
        return ExploringPairObjective(self.pair_loss(), self._kl, self._alpha)

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add the sequence columns preference, as online DPO, and from_reference, uint8 [S]; no sequence
        stays auxiliary.

        Raises ValueError unless the batch has two consecutive sequences for each prompt: the policy's, and
        the auxiliary one of the reference.
        """
        from_reference = ~trainable_mask(batch)
        if not torch.equal(from_reference, torch.arange(len(batch)) % 2 == 1):
            raise ValueError(
                f"of {len(batch)} sequences {int(from_reference.sum())} are the reference's: each prompt has "
                "one response of the policy, followed by one of the reference"
            )
        metrics = super().advantages(batch, state)
        batch.sequence_columns[_FROM_REFERENCE] = from_reference.to(torch.uint8)
        marks, rewards = batch.sequence(PREFERENCE), batch.sequence("shaped_rewards")
        metrics["preference/win_rate"] = float(((marks[~from_reference].double() + 1) / 2).mean())
        metrics["preference/reference_score"] = float(rewards[from_reference].mean())
        metrics["rollout/reference_gap_mean"] = _reference_gap(batch, from_reference)
        return metrics


def _reference_gap(batch: Batch, from_reference: Tensor) -> float:
    """Return the mean absolute difference, in nats, of the log-probabilities that rollout engine and
    reference compute for the tokens of the reference's responses; 0 without such tokens.
    """
    mask = batch.token("loss_mask").bool() & from_reference[batch.sequence_of_token]
    gap = (batch.token("engine_logprobs") - batch.token("reference_logprobs"))[mask].abs()
    return float(gap.mean()) if len(gap) else 0.0


class ExploringPairObjective(SampledPairObjective):
    """Mean over the prompts of a minibatch of the pair's loss, 0 where there is none, and of `alpha` times
    the log-probability of the reference's response.

    Metrics of pairs are means over the pairs. KL divergence and the gap to the rollout engine are measured
    over the policy's responses. Reads the sequence column from_reference as well.
    """

    def __init__(self, pair_loss: PairLossFunction, kl: spec.KL, alpha: float) -> None:
        super().__init__(pair_loss, kl)
        self._alpha = alpha

    def prepare(self, minibatch: Batch) -> None:
        super().prepare(minibatch)
        marks, from_reference = minibatch.sequence(PREFERENCE), minibatch.sequence(_FROM_REFERENCE)
        paired = (marks == CHOSEN).sum() / max(1, int(from_reference.sum()))
        minibatch.scalars[_PAIRED_SHARE] = float(paired)
        minibatch.sequence_columns[_BONUS_SHARES] = sequence_shares(minibatch, from_reference)

    def policy_samples(self, minibatch: Batch) -> Tensor:
        return minibatch.sequence(_FROM_REFERENCE) == 0

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        terms = super().loss(outputs, microbatch)
        logprobs = require_output(outputs.logprobs, "logprobs")
        responses = response_logprobs(logprobs, microbatch, reference=False).logprob
        mean = (microbatch.sequence(_BONUS_SHARES).to(responses) * responses).sum()
        terms.loss = microbatch.scalars[_PAIRED_SHARE] * terms.loss + self._alpha * mean
        terms.sums["preference/reference_sample_logprob"] = mean.detach()
        return terms
