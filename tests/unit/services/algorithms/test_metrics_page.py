"""Every metric that an algorithm reports is on the page that explains them."""

import re
from pathlib import Path

import torch

from support.batches import stand_in
from support.objective_cases import all_cases, families

PAGE = Path(__file__).parents[4] / "docs" / "metrics.md"


def test_every_metric_is_explained() -> None:
    reported: set[str] = set()
    for objective, make in all_cases().values():
        batch = make()
        objective.prepare(batch)
        terms = objective.loss(stand_in(batch, torch.ones(3, dtype=torch.float64)), batch)
        reported |= terms.sums.keys() | terms.maxima.keys()
    for _, family in families():
        if hasattr(family, "reported"):
            reported |= set(family.reported())
    explained = set(re.findall(r"`([a-z]+(?:/[A-Za-z_]+)+)`", PAGE.read_text(encoding="utf-8")))
    # Metrics of one attribute are listed under NAME on the page.
    general = {re.sub(r"^(rm/absolute_error)/.+", r"\1/NAME", name) for name in reported}
    assert len(general) > 40
    assert general - explained == set()
