"""A healthy job with single modified metrics."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kubealign.client.records import ProcessRecord, ProcessState
from kubealign.diagnostics.health import HealthFinding, check_health
from kubealign.read_model import StepMetrics

RESOURCE: dict[str, Any] = {
    "metadata": {"name": "sums"},
    "spec": {"algorithm": {"ppo": {"criticWarmupSteps": 3}}},
    "status": {"phase": "Running"},
}
WELL = {
    "reward/mean": 0.5,
    "reward/std": 1.0,
    "reward/constant_groups": 0.2,
    "kl/reference": 0.02,
    "kl/reference_sequence": 2.0,
    "policy/entropy": 0.8,
    "policy/clip_fraction": 0.1,
    "policy/approx_kl": 0.01,
    "trainer/gradient_norm": 1.0,
    "critic/gradient_norm": 1.0,
    "critic/explained_variance": 0.3,
    "critic/clip_fraction": 0.1,
    "response/length": 12.0,
    "response/truncated_share": 0.1,
    "rollout/logprob_gap_mean": 0.004,
    "rollout/staleness_max": 0.0,
    "refit/retries": 0.0,
    "refit/quarantined_workers": 0.0,
    "data/given_up_prompts": 0.0,
    "data/discarded_groups": 0.0,
    "seconds/step": 2.0,
}

#: name -> its value at each step.
Sick = Callable[[int], float]
Found = Callable[..., list[HealthFinding]]


def steps(count: int, sick: dict[str, Sick], fence: int = 1) -> list[StepMetrics]:
    return [
        StepMetrics(f"{step}-0", step, fence, WELL | {name: value(step) for name, value in sick.items()})
        for step in range(1, count + 1)
    ]


@pytest.fixture
def found() -> Found:
    """Return the findings of a healthy job of 60 steps with these metrics modified (step -> value)."""

    def examine(
        count: int = 60,
        resource: dict[str, Any] = RESOURCE,
        processes: Sequence[ProcessRecord] = (),
        **sick: Sick,
    ) -> list[HealthFinding]:
        figures = {name.replace("__", "/"): value for name, value in sick.items()}
        return check_health(resource, steps(count, figures), processes)

    return examine


def process(name: str, role: str, **fields: Any) -> ProcessRecord:
    """Return a ready process with a recent heartbeat."""
    defaults = {
        "state": ProcessState.READY,
        "says": {"role": role},
        "silent_seconds": 2.0,
    }
    return ProcessRecord(name=name, role=role, **(defaults | fields))
