"""Checks of every status that a test of the planner sees."""

from collections.abc import Iterator
from typing import Any

import pytest

from kubealign_operator.planner import planner
from kubealign_operator.planner.plan import Decision, ReconcilePlan
from kubealign_operator.planner.snapshot import JobSnapshot
from support.argo_cd import EXPECTED, combination, health


@pytest.fixture(autouse=True)
def _argo_cd_knows_every_status(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Execute Argo CD's health check for each new combination of phase and conditions."""
    if request.node.path.name == "test_properties.py":
        # Its statuses are generated: no operator has written them.
        yield
        return
    checked: set[Any] = set()
    build_plan = planner.build_plan

    def checked_plan(snapshot: JobSnapshot, decision: Decision) -> ReconcilePlan:
        plan = build_plan(snapshot, decision)
        key = combination(plan.status)
        if key not in checked:
            generation = plan.status.get("observedGeneration")
            job = {"metadata": {"generation": generation}, "status": plan.status}
            assert health(job).status == EXPECTED.get(key), f"{key} is not in support.argo_cd.EXPECTED"
            checked.add(key)
        return plan

    monkeypatch.setattr(planner, "build_plan", checked_plan)
    yield
