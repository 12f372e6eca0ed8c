"""PPO job of examples/arithmetic with seed 1, which is healthy at every step. healthy_ppo.json holds its
metrics to four digits: name -> step -> value.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubealign.diagnostics.health import check_health
from kubealign.read_model import StepMetrics

RECORDED: dict[str, dict[str, float]] = json.loads(Path(__file__).with_name("healthy_ppo.json").read_text())
JOBS = Path(__file__).parents[5] / "examples" / "arithmetic" / "jobs.yaml"
STEPS = 90


@pytest.fixture(scope="module")
def resource() -> dict[str, Any]:
    documents = yaml.safe_load_all(JOBS.read_text())
    (job,) = [result for result in documents if result["metadata"]["name"] == "arithmetic-ppo"]
    return dict(job) | {"status": {"phase": "Running"}}


def run(times: dict[str, float] | None = None) -> list[StepMetrics]:
    """Return the recorded steps, with these metrics multiplied in the second half."""
    changed = times or {}
    return [
        StepMetrics(
            f"{step}-0",
            step,
            1,
            {
                name: column[str(step)] * (changed.get(name, 1.0) if step > STEPS // 2 else 1.0)
                for name, column in RECORDED.items()
                if str(step) in column
            },
        )
        for step in range(STEPS + 1)
    ]


def test_healthy_run_has_no_findings(resource: dict[str, Any]) -> None:
    steps = run()
    assert len(RECORDED["reward/mean"]) == STEPS
    assert [check_health(resource, steps[:count], []) for count in range(len(steps) + 1)] == [[]] * (
        STEPS + 2
    )


@pytest.mark.parametrize(
    ("figure", "times", "anchor"),
    [
        ("kl/reference_sequence", 30.0, "kl-running-away"),
        ("policy/entropy", 0.05, "entropy-collapse"),
        ("response/length", 6.0, "length-growing"),
        ("critic/explained_variance", -1.0, "critic-behind"),
        ("reward/std", 0.0, "rewards-alike"),
    ],
)
def test_modified_run_has_findings(figure: str, times: float, anchor: str, resource: dict[str, Any]) -> None:
    assert [finding.anchor for finding in check_health(resource, run({figure: times}), [])] == [anchor]
