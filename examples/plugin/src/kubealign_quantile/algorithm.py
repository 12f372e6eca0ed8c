"""Policy gradient with a quantile of the group's other rewards as baseline.

    A_i = R_i - Q_q(R_j, j of the same group, j != i)

Q_q is the quantile with linear interpolation; q = 1/2 is the median, which is less sensitive to an outlier
than the mean; with a higher q a response must beat the better ones of its group. The baseline of a response
does not depend on that response, so the gradient stays unbiased (Williams 1992). Loss, clipping, KL and all
other parts are those of every algorithm with a clipped ratio.
"""

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from kubealign.spec.algorithms import CustomSpec
from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm
from kubealign_services.batch.packed import Batch


class Parameters(BaseModel):
    """Parameters of `algorithm.custom.parameters`."""

    model_config = ConfigDict(extra="forbid")

    quantile: float = Field(0.5, ge=0, le=1)


class Quantile(ClippedOnlineAlgorithm):
    """Policy gradient with a quantile baseline, from the job's entry `algorithm.custom`."""

    def __init__(self, entry: CustomSpec) -> None:
        super().__init__(entry)
        self._quantile = Parameters.model_validate(entry.parameters).quantile
        if entry.samples_per_prompt < 2:
            raise ValueError("samplesPerPrompt must be at least 2: a response is compared with the others")

    def compared(self, returns: Tensor, batch: Batch) -> Tensor:
        """Return the advantages, [S] -> [S]; 0 for a response that is alone."""
        group = batch.sequence("group")
        advantages = torch.zeros_like(returns)
        for one in range(len(returns)):
            others = returns[(group == group[one]) & (torch.arange(len(returns)) != one)]
            if len(others):
                advantages[one] = returns[one] - others.quantile(self._quantile)
        return advantages
