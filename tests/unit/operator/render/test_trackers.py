"""A job's pods may reach the world only where one of its trackers sends something there."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_operator.render.network_policy import fetches, tracks
from support.rendering.jobs import sft

CASES: list[tuple[dict[str, Any], bool]] = [
    ({"tensorBoard": {}}, False),
    ({"jsonLines": {}}, False),
    ({"weightsAndBiases": {}}, True),
    ({"weightsAndBiases": {"mode": "Offline"}}, False),
    ({"mlflow": {}}, False),
    ({"mlflow": {"trackingUri": "https://mlflow.example"}}, True),
]


@pytest.mark.parametrize(("tracker", "sends"), CASES)
def test_whether_a_tracker_sends(tracker: dict[str, Any], sends: bool) -> None:
    job = AlignmentJob.model_validate(
        sft(trackers=[{"name": "here", "jsonLines": {}}, {"name": "it"} | tracker])
    )
    assert tracks(job) is sends
    assert not fetches(job)
