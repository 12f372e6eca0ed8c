"""Odds ratio preference optimisation."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.offline import Offline
from kubealign_services.algorithms.pairs import Compared, PairObjective, Pairs


class ORPO(Offline):
    """Hong et al. 2024, "ORPO: Monolithic Preference Optimization without Reference Model", eq. 6 and 7.

        p(y)    = exp(log-probability of y / its tokens)        odds(y) = p(y) / (1 - p(y))
        loss    = -log p(chosen) + coefficient * -log sigmoid(log(odds(chosen) / odds(rejected)))

    The first term imitates the chosen response, the second holds the rejected one down while that happens: no
    model is started from that was fine-tuned before, and no reference. Rewards are reported as log odds."""

    def __init__(self, entry: spec.ORPO) -> None:
        self._coefficient = entry.coefficient

    def policy_objective(self) -> PairObjective:
        return PairObjective(self._compare, reference=False)

    def _compare(self, pairs: Pairs) -> Compared:
        nll = -pairs.chosen.mean_logprob
        chosen, rejected = log_odds(pairs.chosen.mean_logprob), log_odds(pairs.rejected.mean_logprob)
        ratio = -logsigmoid(chosen - rejected)
        also = {"preference/nll_loss": nll, "preference/odds_ratio_loss": ratio}
        return Compared(nll + self._coefficient * ratio, chosen, rejected, also)


def log_odds(logprob: Tensor) -> Tensor:
    """log(p / (1 - p)). What is certain to the last digit has a large number and no gradient."""
    least = logprob.clamp(max=-torch.finfo(logprob.dtype).eps)
    return logprob - torch.log(-torch.expm1(least))
