"""IPO: identity preference optimisation."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.pairwise import PairTerms, PairwiseObjective, PreferencePairs


class IPOAlgorithm(OfflineAlgorithm):
    """Azar et al. 2023, "A General Theoretical Paradigm to Understand Learning from Human Preferences", eq.

    17. With h the chosen's mean log-ratio less the rejected's,

        h    = (log p(chosen) - log p_ref(chosen)) / n_chosen - (the same of the rejected) / n_rejected
        loss = (h - 1 / (2 beta))^2

    so that the margin converges to a finite value, and does not grow without bound where a preference is
    certain.
    The paper sums over tokens; dividing by the token count n is what its authors found to be right in
    practice (and what TRL does), since a sum's scale grows with the length while the target does not.
    Rewards are reported as beta times the mean log-ratio: the margin converges to 1/2.
    """

    needs_reference = True

    def __init__(self, entry: spec.IPOSpec) -> None:
        self._beta = entry.beta

    def policy_objective(self) -> PairwiseObjective:
        return PairwiseObjective(self.pair_loss, reference=True)

    def pair_loss(self, pairs: PreferencePairs) -> PairTerms:
        """Return the loss and the implicit rewards of each pair."""
        chosen = pairs.chosen.log_ratio / pairs.chosen.length
        rejected = pairs.rejected.log_ratio / pairs.rejected.length
        loss = (chosen - rejected - 1 / (2 * self._beta)).square()
        return PairTerms(loss, self._beta * chosen, self._beta * rejected)
