"""The NetworkPolicy allows all egress only when a tracker sends metrics out of the cluster."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_operator.manifests.network_policy import uses_hub, uses_online_tracker
from support.rendering.jobs import sft

CASES: list[tuple[dict[str, Any], bool]] = [
    ({"tensorBoard": {}}, False),
    ({"jsonLines": {}}, False),
    ({"weightsAndBiases": {}}, True),
    ({"weightsAndBiases": {"mode": "Offline"}}, False),
    ({"mlflow": {}}, False),
    ({"mlflow": {"trackingUri": "https://mlflow.example"}}, True),
    ({"swanLab": {}}, True),
    ({"swanLab": {"mode": "Offline"}}, False),
    ({"trackio": {}}, False),
    ({"trackio": {"serverUrl": "https://trackio.example"}}, True),
    ({"trackio": {"space": "acme/curves"}}, True),
]


@pytest.mark.parametrize(("tracker", "sends"), CASES)
def test_online_trackers_open_the_egress(tracker: dict[str, Any], sends: bool) -> None:
    job = AlignmentJob.model_validate(
        sft(trackers=[{"name": "here", "jsonLines": {}}, {"name": "it"} | tracker])
    )
    assert uses_online_tracker(job) is sends
    assert not uses_hub(job)
