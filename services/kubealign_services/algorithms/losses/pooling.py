"""Pooling of a score head's token outputs to one value per sequence."""

from torch import Tensor

from kubealign.spec.algorithms import ScorePooling
from kubealign_services.batch.packed import Batch, sequence_sums


def pool_outputs(values: Tensor, batch: Batch, pooling: ScorePooling) -> Tensor:
    """Pool token outputs to [S], or [S, N] of N scores, with gradient.

    LastToken: the output at each sequence's last token. ResponseSum: the sum of the outputs over its
    response tokens (`loss_mask`).

    Args:
        values: [T] or [T, N], the score head's output at the token itself.

    Raises KeyError where ResponseSum finds no `loss_mask`.
    """
    if pooling is ScorePooling.LAST_TOKEN:
        return values[(batch.cu_seqlens[1:].long() - 1).to(values.device)]
    counted = batch.token("loss_mask").bool().to(values.device)
    counted = counted if values.dim() == 1 else counted[:, None]
    return sequence_sums(values.where(counted, values.new_zeros(())), batch)
