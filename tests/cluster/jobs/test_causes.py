"""Status messages for pods that cannot run, with the reasons of a real kubelet and scheduler."""

from typing import Any

import pytest

from cluster.support.paced_jobs import container, paced_job, prepare
from cluster.support.tenant import Tenant

pytestmark = pytest.mark.timeout(600)

_SECONDS = 60.0
_NO_RESTART = {"lifecycle": {"maxRestarts": 0, "gracePeriodSeconds": 10}}


@pytest.mark.parametrize(
    ("changes", "phase", "words"),
    [
        pytest.param(
            {"podTemplate": container(image="nowhere.example/kubealign:1")},
            "Starting",
            ("prepare cannot get its image", "nowhere.example/kubealign:1"),
            id="image",
        ),
        pytest.param(
            {"podTemplate": container(resources={"requests": {"cpu": "1000"}})},
            "Starting",
            ("prepare fits on no node", "Insufficient cpu"),
            id="unschedulable",
        ),
        pytest.param(
            {**_NO_RESTART, "podTemplate": container(resources={"limits": {"memory": "64Mi"}})},
            "Failed",
            ("prepare was killed", "more memory than its limit of 64Mi", "allows no restart"),
            id="memory",
        ),
        pytest.param(
            {**_NO_RESTART, "podTemplate": container(env=[{"name": "PYTHONHOME", "value": "/nowhere"}])},
            "Failed",
            ("prepare ended with code 1", "allows no restart"),
            id="crash",
        ),
        pytest.param(
            {"data": {"prompts": {"source": {"volume": {"claimName": "arithmetic", "path": "none.jsonl"}}}}},
            "Failed",
            ("prepare: ", "none.jsonl"),
            id="no-data",
        ),
        pytest.param(
            {"data": {"prompts": {"source": {"volume": {"claimName": "nobodys", "path": "prompts.jsonl"}}}}},
            "Starting",
            ("prepare fits on no node", "nobodys"),
            id="no-claim",
        ),
    ],
)
def test_the_status_names_the_cause_that_stops_a_pod(
    tenant: Tenant, changes: dict[str, Any], phase: str, words: tuple[str, ...]
) -> None:
    prepare(tenant, 1)
    tenant.apply(paced_job("stopped", 1, **changes))
    tenant.until_message("stopped", *words, seconds=_SECONDS)
    tenant.until_phase("stopped", phase, _SECONDS)
