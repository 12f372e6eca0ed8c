"""What becomes of responses in the making, where the job does not say."""

from collections.abc import Callable
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.spec.rollout import InFlight

STALE = "spec.algorithm.rloo.maxStaleness"
ENGINE = "spec.rollout.engine"
TOLD = "spec.rollout.refit"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, InFlight.DRAIN),
        ({STALE: 2}, InFlight.INTERRUPT),
        ({STALE: 2, ENGINE: {"triton": {}}}, InFlight.INTERRUPT),
        ({STALE: 2, ENGINE: {"vllm": {}}}, InFlight.DRAIN),
        ({STALE: 2, ENGINE: {"tensorrtLLM": {}}}, InFlight.DRAIN),
        ({STALE: 2, TOLD: {"inFlight": "Drain"}}, InFlight.DRAIN),
        ({STALE: 2, TOLD: {"inFlight": "Continue"}}, InFlight.CONTINUE),
        ({TOLD: {"inFlight": "Interrupt"}}, InFlight.INTERRUPT),
    ],
)
def test_an_asynchronous_job_interrupts_where_its_engine_can(
    changes: dict[str, Any], expected: InFlight, document: Callable[..., dict[str, Any]]
) -> None:
    assert AlignmentJob.model_validate(document("rloo", changes)).spec.in_flight is expected
