"""Invariants of every objective: its gradient depends neither on the split nor on tokens outside the
responses. Cases: `objectives`, a module for each family.
"""

import math

import pytest
import torch
from torch import Tensor

from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, Objective
from kubealign_services.batch.packed import Batch
from support.batches import stand_in
from support.objective_cases import all_cases

WEIGHTS = torch.tensor([0.3, -0.2, 0.4], dtype=torch.float64)
CASES = all_cases()
over_all = pytest.mark.parametrize("name", list(CASES))


def run(
    objective: Objective, batch: Batch, split: list[list[int]]
) -> tuple[Tensor, dict[str, float], dict[str, float]]:
    """Return (gradient, summed metrics, maxima) of one minibatch, split at these units."""
    weights = WEIGHTS.clone().requires_grad_()
    objective.prepare(batch)
    sums: dict[str, float] = {"loss": 0.0}
    maxima: dict[str, float] = {}
    for units in split:
        part = batch.select([unit * objective.unit + k for unit in units for k in range(objective.unit)])
        terms: LossTerms = objective.loss(stand_in(part, weights), part)
        terms.loss.backward()  # type: ignore[no-untyped-call]
        sums["loss"] += float(terms.loss.detach())
        for key, value in terms.sums.items():
            assert not value.requires_grad, key
            sums[key] = sums.get(key, 0.0) + float(value)
        for key, value in terms.maxima.items():
            maxima[key] = max(maxima.get(key, -math.inf), float(value))
    assert weights.grad is not None
    return weights.grad, sums, maxima


@over_all
def test_gradient_and_metrics_do_not_depend_on_the_split(name: str) -> None:
    objective, make = CASES[name]
    units = len(make()) // objective.unit
    full = run(objective, make(), [list(range(units))])
    generator = torch.Generator().manual_seed(11)
    for size in (1, 3):
        order = torch.randperm(units, generator=generator).tolist()
        gradient, sums, maxima = run(objective, make(), [order[i : i + size] for i in range(0, units, size)])
        torch.testing.assert_close(gradient, full[0], atol=1e-10, rtol=1e-9)
        assert sums == pytest.approx(full[1], abs=1e-10)
        assert maxima == pytest.approx(full[2], abs=1e-12)
    assert full[0].abs().max() > 1e-5


@over_all
def test_tokens_outside_the_response_do_not_matter(name: str) -> None:
    objective, make = CASES[name]
    batch = make()
    objective.prepare(batch)
    weights = WEIGHTS.clone().requires_grad_()
    (clean,) = torch.autograd.grad(objective.loss(stand_in(batch, weights), batch).loss, weights)
    outside = ~batch.token("loss_mask").bool()
    outputs = stand_in(batch, weights)
    columns = {
        key: None if column is None else spoiled(column, outside) for key, column in vars(outputs).items()
    }
    (gradient,) = torch.autograd.grad(objective.loss(ModelOutputs(**columns), batch).loss, weights)
    torch.testing.assert_close(gradient, clean, atol=1e-12, rtol=0)


def spoiled(column: Tensor, outside: Tensor) -> Tensor:
    """Return other values outside the responses; reads of them show in the gradient."""
    where = outside if column.dim() == 1 else outside[:, None]
    return torch.where(where, 3 * column - 5, column)


@over_all
def test_missing_output_is_named(name: str) -> None:
    objective, make = CASES[name]
    batch = make()
    objective.prepare(batch)
    with pytest.raises(ValueError, match=r"the objective reads (logprobs|values|candidate_logprobs)"):
        objective.loss(ModelOutputs(), batch)
