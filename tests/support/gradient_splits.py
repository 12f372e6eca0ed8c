"""Check that the gradient of an objective does not depend on micro-batches and ranks."""

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.torch_backend.packing.microbatches import plan_microbatches
from support.batches import stand_in


def check_gradient_of_microbatches(
    batch: Batch, objective: Objective, weights: Tensor, microbatch_tokens: int, ranks: int
) -> None:
    """Compare the gradient of the whole minibatch with the sum over the planned passes of all ranks, as the
    trainer adds them.

    Args:
        batch: A minibatch for which the objective was prepared.
        weights: Those of `stand_in`, float64.
    """
    weights = weights.clone().requires_grad_()
    (expected,) = torch.autograd.grad(objective.loss(stand_in(batch, weights), batch).loss, weights)
    total = torch.zeros_like(weights)
    for rank in plan_microbatches(batch, objective.unit, microbatch_tokens, ranks):
        for microbatch in rank:
            part = batch.select(microbatch.sequences)
            (gradient,) = torch.autograd.grad(objective.loss(stand_in(part, weights), part).loss, weights)
            total += gradient * microbatch.is_counted
    torch.testing.assert_close(total, expected, atol=1e-12, rtol=1e-10)
