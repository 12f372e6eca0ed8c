"""REINFORCE: policy gradient with a batch-mean baseline."""

from kubealign_services.algorithms.losses.surrogate import LogLikelihood
from kubealign_services.algorithms.online.base import OnlineAlgorithm


class ReinforceAlgorithm(OnlineAlgorithm):
    """Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement
    learning"; for language models as one action per response (Ahmadian et al. 2024).

        R_i = reward_i - beta * (sum over its tokens of KL_t)        A_i = R_i - mean R of the step

        loss = mean over sequences of -A_i log p(response_i) - entropy_coefficient H

    The baseline is `advantage.center`: None is REINFORCE without a baseline. No ratio constrains the
    policy: with several optimiser steps per step the later ones are off policy.
    """

    def surrogate(self) -> LogLikelihood:
        return LogLikelihood()
