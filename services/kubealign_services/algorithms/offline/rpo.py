"""RPO: reward-aware preference optimisation."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.pairwise import (
    PairTerms,
    PairwiseObjective,
    PreferencePairs,
    with_chosen_likelihood,
)


class RPOAlgorithm(OfflineAlgorithm):
    """Nvidia 2024, "Nemotron-4 340B Technical Report", section 3.3.2.

    The policy's reward gap is fitted to the rated gap, so that a chosen response that is hardly better is
    not learned as if it were much better:

        a = r(chosen) - r(rejected), r(y) = beta (log p(y) - log p_ref(y))
        b = rewardScale * (rating of the chosen - rating of the rejected)

        loss = KL(Bernoulli(sigmoid b) || Bernoulli(sigmoid a))     BackwardKL, the report's
               KL(Bernoulli(sigmoid a) || Bernoulli(sigmoid b))     ForwardKL
               (a - b)^2                                            Squared
               + nllCoefficient * -log p(chosen)                    the report's, with nllReduction Sum

    The names are NeMo-Aligner's (rpo_bwd_kl, rpo_fwd_kl, rpo_sq).
    """

    needs_reference = True

    def __init__(self, entry: spec.RPOSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> PairwiseObjective:
        return PairwiseObjective(self._pair_loss, reference=True, rated=True)

    def _pair_loss(self, pairs: PreferencePairs) -> PairTerms:
        assert pairs.rating_gap is not None
        chosen = self._spec.beta * pairs.chosen.log_ratio
        rejected = self._spec.beta * pairs.rejected.log_ratio
        gap = self._spec.reward_scale * pairs.rating_gap
        loss = reward_gap_distance(chosen - rejected, gap, self._spec.distance)
        terms = PairTerms(loss, chosen, rejected, {"preference/given_margin": gap})
        return with_chosen_likelihood(terms, pairs, self._spec)


def reward_gap_distance(gap: Tensor, given: Tensor, kind: spec.RPODistance) -> Tensor:
    """Compute the distance of two reward gaps, element by element, with a gradient through `gap`.

    0 where both are equal, else above 0.
    """
    if kind is spec.RPODistance.SQUARED:
        return (gap - given).square()
    backward = kind is spec.RPODistance.BACKWARD_KL
    first, second = (given, gap) if backward else (gap, given)
    return first.sigmoid() * (logsigmoid(first) - logsigmoid(second)) + (-first).sigmoid() * (
        logsigmoid(-first) - logsigmoid(-second)
    )
