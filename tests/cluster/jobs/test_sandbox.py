"""Job whose programs run in the sandboxes of the chart's service, in a pod of its own."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster.support.cluster import Cluster
from cluster.support.helm import CHART, NAMESPACE, Helm
from cluster.support.paced_jobs import paced_job, prepare
from cluster.support.platform import platform_values
from cluster.support.tenant import Tenant
from support.chaos.job import PROMPTS_PER_STEP

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

_STEPS = 4
_TOKEN = "a-secret-of-the-test"
_PROFILE = CHART / "files" / "sandbox-seccomp.json"
_READY_SECONDS = 120
#: Defines each word of the policy's alphabet that begins with the letter a, so that such a response is a
#: right program, and any other one raises a NameError.
_HEAD = """
import itertools
for count in range(4):
    for letters in itertools.product("abcdefgh", repeat=count):
        globals()["a" + "".join(letters)] = None
"""


def sandbox_values() -> dict[str, object]:
    """Return chart values with a small sandbox service."""
    service = {
        "enabled": True,
        "tokenSecret": "sandbox",
        "parallelTests": 2,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}},
    }
    return platform_values() | {"sandbox": service}


@contextmanager
def sandbox_service(cluster: Cluster, helm: Helm) -> Iterator[None]:
    """Run the chart's sandbox service beside the installed release."""
    objects = [
        each
        for each in helm.render(sandbox_values())
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "sandbox"
    ]
    assert {each["kind"] for each in objects} == {"Deployment", "NetworkPolicy", "Service"}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "sandbox", "namespace": NAMESPACE},
        "stringData": {"token": _TOKEN},
    }
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": [secret, *objects]})
    try:
        cluster.kubectl("apply", "-f", "-", stdin=document)
        wait = f"--timeout={_READY_SECONDS}s"
        cluster.kubectl(
            *("-n", NAMESPACE, "rollout", "status", "deployment/kubealign-sandbox", wait),
            timeout=_READY_SECONDS + 10,
        )
        yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=document, timeout=90)


def test_programs_run_in_the_sandboxes_of_a_pod(tenant: Tenant, cluster: Cluster, platform: Helm) -> None:
    cluster.node.add_seccomp_profile("profiles/kubealign-sandbox.json", _PROFILE.read_text())
    prepare(tenant, _STEPS)
    rows = [
        {"prompt": "abcdefgh"[number % 8], "head": _HEAD, "tests": [{"input": "", "output": ""}]}
        for number in range(_STEPS * PROMPTS_PER_STEP)
    ]
    (tenant.folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tenant.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "sandbox"},
            "stringData": {"token": _TOKEN},
        }
    )
    code = {"kind": "InputOutput", "prefixColumn": "head"}
    token = {"name": "SANDBOX_TOKEN", "valueFrom": {"secretKeyRef": {"name": "sandbox", "key": "token"}}}
    server = {"url": f"http://kubealign-sandbox.{NAMESPACE}:8080", "tokenVariable": "SANDBOX_TOKEN"}
    job = paced_job(
        "programs",
        _STEPS,
        rewards=[
            {
                "name": "service",
                "timeoutSeconds": 60,
                "onError": "Fail",
                "verifier": {"code": code | {"server": server}},
                "egress": [{"namespace": {"name": NAMESPACE}, "ports": [{"port": 8080}]}],
                "podTemplate": {"spec": {"containers": [{"name": "main", "env": [token]}]}},
            },
        ],
    )
    with sandbox_service(cluster, platform):
        tenant.apply(job)
        tenant.until_phase("programs", "Succeeded", 300)
    samples = [
        json.loads(line)
        for line in (tenant.run_folder("programs") / "samples.jsonl").read_text().splitlines()
    ]
    assert samples
    right = 0
    for sample in samples:
        is_right = re.fullmatch("a[a-h]{0,3}", sample["response"]) is not None
        assert sample["rewards"]["service"] == float(is_right)
        right += is_right
    assert right > 0, "no program was right, so the test shows nothing"
