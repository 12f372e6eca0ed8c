"""CISPO: clipped importance-sampling policy optimisation."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.losses.surrogate import BoundedWeight
from kubealign_services.algorithms.online.base import OnlineAlgorithm


class CISPOAlgorithm(OnlineAlgorithm):
    """MiniMax 2025, "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention", eq. 4, 5.

    Clips the importance weights of the tokens instead of their updates: rare tokens that turn a line of
    thought keep their gradient, however large their ratio:

        A_i = (R_i - mean of the group) / (std of the group + epsilon)

        loss = mean over all response tokens of -sg[clip(r_t, ratio_floor, ratio_cap)] A_i log p_t
    """

    def __init__(self, entry: spec.CISPOSpec) -> None:
        super().__init__(entry)
        self._spec = entry

    def surrogate(self) -> BoundedWeight:
        return BoundedWeight(self._spec.ratio_floor, self._spec.ratio_cap)
