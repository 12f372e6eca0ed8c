"""Running jobs survive the loss of any pod; finished jobs stay finished.

Rollout workers, rewards and environments are lost in test_pools.py.
"""

import json

import pytest

from cluster.support.helm import NAMESPACE
from cluster.support.lost_pods import lose_pod, pods_of
from cluster.support.paced_jobs import assert_each_prompt_once, paced_job, prepare, set_pace
from cluster.support.tenant import CLAIM, Tenant

pytestmark = pytest.mark.timeout(1800)

_STEPS = 100
#: Without the checkpoint of an eviction the trainer would start anew.
_RARE_CHECKPOINTS = {"everySteps": 60, "volume": {"claimName": CLAIM, "path": "runs"}}
_LEASE = ("get", "lease", "kubealign-operator", "-n", NAMESPACE, "-o", "jsonpath={.spec.holderIdentity}")


def loaded_step(tenant: Tenant, job: str) -> int:
    """Return the step of the checkpoint with which the trainer has started."""
    [pod] = pods_of(tenant, job, "trainer-0")
    lines = (json.loads(line) for line in tenant.kubectl("logs", pod).splitlines() if line.startswith("{"))
    return int([line["step"] for line in lines if line["message"] == "weights loaded"][-1])


def leader(tenant: Tenant) -> str:
    """Return the operator's leader pod, whose name begins the lease's holder identity."""
    return tenant.control_plane.kubectl(*_LEASE).split("_")[0]


def lose_leader(tenant: Tenant, job: str) -> None:
    """Delete the operator's leader, and wait until the other replica leads and reports the job's steps."""
    before = leader(tenant)
    tenant.control_plane.kubectl("delete", "pod", before, "-n", NAMESPACE, "--wait=false")
    tenant.until(lambda: leader(tenant) not in ("", before), f"another leader than {before}")
    tenant.until_beyond(job, tenant.step(job), "after the operator's leader was deleted")


def finish(tenant: Tenant, job: str) -> None:
    """Run the rest of the job at full speed, and wait until it succeeds."""
    set_pace(tenant, 0.0)
    tenant.until_phase(job, "Succeeded", 300)


def test_every_pod_is_lost_in_turn_and_the_finished_job_stays_finished(tenant: Tenant) -> None:
    prepare(tenant, _STEPS)
    tenant.apply(paced_job("lost", _STEPS, checkpoint=_RARE_CHECKPOINTS))
    tenant.until_beyond("lost", 1, "at the start")
    for process in ("trainer-0", "driver", "nats"):
        before = tenant.step("lost")
        lose_pod(tenant, "lost", process)
        if process == "trainer-0":
            assert loaded_step(tenant, "lost") >= before, "the driver saved before the trainer ended"
    lose_leader(tenant, "lost")
    assert not tenant.status("lost").get("restarts"), "a deleted pod is no failure"
    finish(tenant, "lost")
    assert_each_prompt_once(tenant, "lost", _STEPS)
    ended = tenant.status("lost")

    tenant.kubectl("delete", "pods,secrets,configmaps,services", "-l", "kubealign.dev/job=lost")
    tenant.kubectl("annotate", "aj", "lost", "touched=yes")
    # The operator reconciles jobs in the order of their changes: the message of this job proves that the
    # finished job was reconciled too.
    tenant.apply(paced_job("after", _STEPS, policy={"model": {"job": {"name": "nobody"}}}))
    tenant.until_message("after", "job nobody, which does not exist")
    assert tenant.left("pods,secrets,configmaps,services") == []
    assert tenant.status("lost")["completionTime"] == ended["completionTime"]

    tenant.kubectl(
        "patch", "aj", "lost", "--type=merge", "-p", '{"spec":{"lifecycle":{"ttlSecondsAfterFinished":1}}}'
    )
    tenant.control_plane.kubectl.wait_for("aj/lost", "delete", namespace=tenant.namespace, seconds=60)
    assert tenant.left("pods") == []
