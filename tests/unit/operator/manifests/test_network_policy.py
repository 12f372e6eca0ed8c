"""The NetworkPolicy allows all egress only when a tracker sends metrics out of the cluster."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.network_policy import network_policy, uses_hub, uses_online_tracker
from support.rendering.jobs import PLATFORM, UID, sft

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


def reaches(egress: list[dict[str, Any]], address: str, port: int) -> bool:
    """Return True when rules for blocks of addresses, or for all of them, allow the address outside pods."""
    target = ip_address(address)
    for rule in egress:
        if "ports" in rule and port not in [entry["port"] for entry in rule["ports"]]:
            continue
        if "to" not in rule:
            return True
        for block in [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]:
            excluded = any(target in ip_network(network) for network in block["except"])
            if target in ip_network(block["cidr"]) and not excluded:
                return True
    return False


@pytest.mark.parametrize(
    ("tracker", "address", "reached"),
    [
        ({"swanLab": {}}, "203.0.113.7", True),
        ({"swanLab": {}}, "2001:db8::7", True),
        ({"jsonLines": {}}, "203.0.113.7", False),
        ({"swanLab": {}}, "169.254.169.254", False),
        ({"swanLab": {}}, "169.254.170.2", False),
        ({"swanLab": {}}, "fd00:ec2::254", False),
        ({"swanLab": {}}, "fe80::a9fe:a9fe", False),
    ],
)
def test_metadata_addresses_are_out_of_reach(tracker: dict[str, Any], address: str, reached: bool) -> None:
    job = AlignmentJob.model_validate(sft(trackers=[{"name": "it"} | tracker]))
    policy = network_policy(RenderContext(job.name, "team", UID, job, PLATFORM))
    assert reaches(policy["spec"]["egress"], address, 80) is reached
