"""ORPO: odds ratio preference optimisation."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.offline.base import OfflineAlgorithm
from kubealign_services.algorithms.offline.pairwise import PairTerms, PairwiseObjective, PreferencePairs


class ORPOAlgorithm(OfflineAlgorithm):
    """Hong et al. 2024, "ORPO: Monolithic Preference Optimization without Reference Model", eq. 6 and 7.

        p(y)    = exp(log-probability of y / its tokens)        odds(y) = p(y) / (1 - p(y))
        loss    = -log p(chosen) + coefficient * -log sigmoid(log(odds(chosen) / odds(rejected)))

    The first term imitates the chosen response, the second suppresses the rejected one: neither prior
    fine-tuning nor a reference model is needed. Rewards are reported as log odds.
    """

    def __init__(self, entry: spec.ORPOSpec) -> None:
        self._coefficient = entry.coefficient

    def policy_objective(self) -> PairwiseObjective:
        return PairwiseObjective(self._pair_loss, reference=False)

    def _pair_loss(self, pairs: PreferencePairs) -> PairTerms:
        nll = -pairs.chosen.mean_logprob
        chosen, rejected = log_odds(pairs.chosen.mean_logprob), log_odds(pairs.rejected.mean_logprob)
        ratio = -logsigmoid(chosen - rejected)
        extra_metrics = {"preference/nll_loss": nll, "preference/odds_ratio_loss": ratio}
        return PairTerms(nll + self._coefficient * ratio, chosen, rejected, extra_metrics)


def log_odds(logprob: Tensor) -> Tensor:
    """Compute log(p / (1 - p)). A probability of 1 within rounding gives a large number and no gradient."""
    least = logprob.clamp(max=-torch.finfo(logprob.dtype).eps)
    return logprob - torch.log(-torch.expm1(least))
