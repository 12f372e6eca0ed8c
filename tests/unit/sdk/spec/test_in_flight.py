"""Default treatment of unfinished responses at a refit."""

from collections.abc import Callable
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import InFlightPolicy

STALE = "spec.algorithm.rloo.maxStaleness"
ENGINE = "spec.rollout.engine"
REFIT = "spec.rollout.refit"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, InFlightPolicy.DRAIN),
        ({STALE: 2}, InFlightPolicy.INTERRUPT),
        ({STALE: 2, ENGINE: {"triton": {}}}, InFlightPolicy.INTERRUPT),
        ({STALE: 2, ENGINE: {"vllm": {}}}, InFlightPolicy.DRAIN),
        ({STALE: 2, ENGINE: {"tensorrtLLM": {}}}, InFlightPolicy.DRAIN),
        ({STALE: 2, ENGINE: {"openai": {"url": "http://vllm:8000"}}}, InFlightPolicy.DRAIN),
        ({STALE: 2, REFIT: {"inFlight": "Drain"}}, InFlightPolicy.DRAIN),
        ({STALE: 2, REFIT: {"inFlight": "Continue"}}, InFlightPolicy.CONTINUE),
        ({REFIT: {"inFlight": "Interrupt"}}, InFlightPolicy.INTERRUPT),
    ],
)
def test_default_in_flight_policy(
    changes: dict[str, Any], expected: InFlightPolicy, document: Callable[..., dict[str, Any]]
) -> None:
    assert AlignmentJob.model_validate(document("rloo", changes)).spec.in_flight is expected
