"""A running job is adopted by a new operator, which scales, suspends and resumes the job."""

from typing import Any

import pytest

from cluster.support.built_images import OPERATOR
from cluster.support.cluster import Cluster
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm
from cluster.support.kubectl import Kubectl
from cluster.support.paced_jobs import assert_each_prompt_once, paced_job, prepare, set_pace
from cluster.support.platform import platform_values
from cluster.support.tenant import Tenant

pytestmark = pytest.mark.timeout(1200)

_STEPS = 100
_NEXT = f"{OPERATOR}-next"
_UPGRADE_SECONDS = 180.0


def next_values() -> dict[str, Any]:
    """Return chart values with another image tag and another annotation for the operator."""
    values = platform_values()
    values["operator"]["image"]["tag"] = _NEXT.partition(":")[2]
    values["operator"]["podAnnotations"] = {"kubealign.test/version": "next"}
    return values


def operator_images(kubectl: Kubectl) -> set[str]:
    """Return the images of the operator's current pods."""
    selector = "app.kubernetes.io/component=operator"
    path = "jsonpath={.items[*].spec.containers[*].image}"
    return set(kubectl("get", "pods", "-n", NAMESPACE, "-l", selector, "-o", path).split())


def restarts(tenant: Tenant) -> set[str]:
    """Return the distinct restart counts of the containers of the tenant's pods."""
    path = "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
    return set(tenant.kubectl("get", "pods", "-o", path).split())


def suspend(tenant: Tenant, job: str, yes: bool) -> None:
    tenant.kubectl("patch", "aj", job, "--type=merge", "-p", f'{{"spec":{{"suspend":{str(yes).lower()}}}}}')


def workers(tenant: Tenant, job: str) -> set[str]:
    """Return the names of the rollout workers' pods."""
    return {name for name in tenant.pods() if name.startswith(f"{job}-rollout-")}


def scale(tenant: Tenant, job: str, replicas: int) -> None:
    """Scale a running job with kubectl, and wait until pods and status follow and the steps go on."""
    tenant.kubectl("scale", f"aj/{job}", f"--replicas={replicas}")
    expected = {f"{job}-rollout-{number}-0" for number in range(replicas)}
    tenant.until(lambda: workers(tenant, job) == expected, f"{replicas} rollout workers")

    def status_agrees() -> bool:
        status = tenant.status(job)
        [role] = [role for role in status["roles"] if role["name"] == "rollout"]
        return bool(status["rolloutReplicas"] == role["ready"] == replicas)

    tenant.until(status_agrees, f"the status to tell {replicas} rollout workers", 180)
    tenant.until_beyond(job, tenant.step(job), f"with {replicas} rollout workers")


def test_a_new_operator_adopts_scales_suspends_and_resumes_a_running_job(
    platform: Helm, tenant: Tenant, cluster: Cluster
) -> None:
    cluster.node.name_image(f"docker.io/library/{OPERATOR}", f"docker.io/library/{_NEXT}")
    prepare(tenant, _STEPS)
    tenant.apply(paced_job("adopted", _STEPS))
    tenant.until_beyond("adopted", 1, "at the start")
    before, document = tenant.pods(), tenant.job("adopted")["metadata"]["generation"]

    waiting = ("--wait", "--timeout", f"{_UPGRADE_SECONDS:.0f}s", "--set", "crds.keep=false")
    file = platform.values(next_values())
    platform(
        "upgrade",
        RELEASE,
        str(CHART),
        "-n",
        NAMESPACE,
        "-f",
        str(file),
        *waiting,
        timeout=_UPGRADE_SECONDS + 30,
    )
    tenant.until(
        lambda: operator_images(cluster.kubectl) == {f"docker.io/library/{_NEXT}"}, "the old operator to go"
    )
    tenant.until_beyond("adopted", tenant.step("adopted"), "with the new operator")
    assert tenant.pods() == before
    assert restarts(tenant) == {"0"}
    assert tenant.job("adopted")["metadata"]["generation"] == document

    scale(tenant, "adopted", 3)
    scale(tenant, "adopted", 1)
    suspend(tenant, "adopted", True)
    tenant.until_phase("adopted", "Suspended")
    assert tenant.pods() == {}
    step = tenant.step("adopted")
    assert [line["step"] for line in tenant.history("adopted")] == list(range(1, step + 1))
    assert f"at step {step}" in tenant.message("adopted")

    suspend(tenant, "adopted", False)
    tenant.until_beyond("adopted", step, "after it was resumed")
    resumed = tenant.pods()
    set_pace(tenant, 0.0)
    tenant.until_phase("adopted", "Succeeded", 300)
    assert tenant.pods() == resumed
    assert restarts(tenant) == {"0"}
    assert not tenant.status("adopted").get("restarts")
    assert_each_prompt_once(tenant, "adopted", _STEPS)
    fences = [line["fence"] for line in tenant.history("adopted")]
    assert fences == [fences[0]] * step + [fences[-1]] * (_STEPS - step) and fences[0] < fences[-1]
