"""Bradley-Terry preference loss."""

from torch import Tensor
from torch.nn.functional import logsigmoid


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected), pair by pair (Bradley and Terry 1952; Ouyang et al. 2022, eq. 1).

    chosen, rejected: scores, [pairs].
    """
    return -logsigmoid(chosen - rejected)
