"""Default treatment of unfinished responses at a refit."""

from collections.abc import Callable
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.spec.rollout import InFlight

STALE = "spec.algorithm.rloo.maxStaleness"
ENGINE = "spec.rollout.engine"
REFIT = "spec.rollout.refit"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, InFlight.DRAIN),
        ({STALE: 2}, InFlight.INTERRUPT),
        ({STALE: 2, ENGINE: {"triton": {}}}, InFlight.INTERRUPT),
        ({STALE: 2, ENGINE: {"vllm": {}}}, InFlight.DRAIN),
        ({STALE: 2, ENGINE: {"tensorrtLLM": {}}}, InFlight.DRAIN),
        ({STALE: 2, REFIT: {"inFlight": "Drain"}}, InFlight.DRAIN),
        ({STALE: 2, REFIT: {"inFlight": "Continue"}}, InFlight.CONTINUE),
        ({REFIT: {"inFlight": "Interrupt"}}, InFlight.INTERRUPT),
    ],
)
def test_default_in_flight_policy(
    changes: dict[str, Any], expected: InFlight, document: Callable[..., dict[str, Any]]
) -> None:
    assert AlignmentJob.model_validate(document("rloo", changes)).spec.in_flight is expected
