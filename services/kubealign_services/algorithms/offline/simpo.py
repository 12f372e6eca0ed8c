"""SimPO: simple preference optimisation."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.pairwise import (
    PairTerms,
    PairwiseObjective,
    PreferencePairs,
    bradley_terry_loss,
)


class SimPOAlgorithm(OfflineAlgorithm):
    """Meng et al. 2024, "SimPO: Simple Preference Optimization with a Reference-Free Reward", eq. 6.

        r(y) = beta log p(y) / tokens of y
        loss = -log sigmoid(r(chosen) - r(rejected) - margin)

    The reward is the mean log-probability that generation maximises, so that a response is not better for
    being shorter; margin (the paper's gamma) is the target lead of the chosen response.
    """

    def __init__(self, entry: spec.SimPOSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> PairwiseObjective:
        return PairwiseObjective(self._pair_loss, reference=False)

    def _pair_loss(self, pairs: PreferencePairs) -> PairTerms:
        chosen = self._spec.beta * pairs.chosen.mean_logprob
        rejected = self._spec.beta * pairs.rejected.mean_logprob
        return PairTerms(bradley_terry_loss(chosen, rejected + self._spec.margin), chosen, rejected)
