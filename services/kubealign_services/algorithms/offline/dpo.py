"""DPO: direct preference optimisation."""

from torch.nn.functional import logsigmoid

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.pairwise import (
    PairTerms,
    PairwiseObjective,
    PreferencePairs,
    with_chosen_likelihood,
)


class DPOAlgorithm(OfflineAlgorithm):
    """Direct preference optimisation (Rafailov et al. 2023, eq. 7).

    The implicit reward of a policy is

        r(y) = beta (log p(y) - log p_ref(y))

    and the loss of a pair, with m = r(chosen) - r(rejected), is

        -log sigmoid(m)                                             labelSmoothing 0
        -(1 - e) log sigmoid(m) - e log sigmoid(-m)                 conservative DPO (Mitchell 2023)
        + nllCoefficient * -log p(chosen) / tokens of the chosen    (Pang et al. 2024, eq. 1)
        + nllCoefficient * -log p(chosen)                           nllReduction Sum

    with e the label smoothing, for which the optimal margin is log((1 - e) / e). log p is a sum over the
    response's tokens.
    """

    needs_reference = True

    def __init__(self, entry: spec.DPOSpec) -> None:
        self._spec = entry

    def policy_objective(self) -> PairwiseObjective:
        return PairwiseObjective(self.pair_loss, reference=True)

    def pair_loss(self, pairs: PreferencePairs) -> PairTerms:
        """Return the loss and the implicit rewards of each pair."""
        chosen = self._spec.beta * pairs.chosen.log_ratio
        rejected = self._spec.beta * pairs.rejected.log_ratio
        margin, smoothing = chosen - rejected, self._spec.label_smoothing
        loss = -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)
        return with_chosen_likelihood(PairTerms(loss, chosen, rejected), pairs, self._spec)
