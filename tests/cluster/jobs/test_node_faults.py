"""Jobs on two nodes survive faults of one: stopped kubelet, drain, lost machine; and random deletions."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.support.cluster import Cluster
from cluster.support.node import Node
from cluster.support.paced_jobs import assert_each_prompt_once, prepare, set_pace
from cluster.support.random_deletions import delete_at_random
from cluster.support.spread_jobs import JOBS_ONLY, spread_job
from cluster.support.team import JobPod
from cluster.support.tenant import Tenant
from support.chaos.checker import check_metrics

pytestmark = pytest.mark.timeout(1800)

_STEPS = 60
# Node lease 50 s, grace period 10 s, and a minute in which the node may confirm the end of a pod.
_LOST_SECONDS = 300.0
_PROCESSES = ("driver", "nats", "trainer-0", "rollout-0", "rollout-1")
_NOT_CONFIRMED = "has not confirmed that pod"


@pytest.fixture
def second_node(cluster: Cluster, tmp_path: Path) -> Iterator[Node]:
    """Second node of `cluster`, only for pods that tolerate JOBS_ONLY."""
    with cluster.further_node("real-1", tmp_path / "real-1") as node:
        cluster.kubectl("taint", "node", node.name, f"{JOBS_ONLY}=:NoSchedule")
        yield node


@contextmanager
def kubelet_stopped(node: Node) -> Iterator[None]:
    """Kill the kubelet, whose containers run on, and start it again at the end."""
    node.kubelet.kill()
    try:
        yield
    finally:
        node.kubelet.start()


def start(tenant: Tenant, node: Node, job: str, **lifecycle: object) -> None:
    """Start a job and wait for a step and until its pods run on both nodes."""
    prepare(tenant, _STEPS)
    tenant.apply(spread_job(job, _STEPS, node.name, **lifecycle))
    tenant.until_beyond(job, 0, "at the start", 300)
    nodes = {process: pod_of(tenant, job, process).node for process in _PROCESSES}
    assert nodes["driver"] == nodes["nats"] == node.name
    assert {nodes["rollout-0"], nodes["rollout-1"]} == {"real-0", node.name}
    assert nodes["trainer-0"] == "real-0"
    # Slow enough that the job does not end before the fault does.
    set_pace(tenant, 4.0)


def finish(tenant: Tenant, job: str) -> None:
    """Let the job make progress, run the rest at full speed, and check the run directory."""
    set_pace(tenant, 0.0)
    tenant.until_phase(job, "Succeeded", 600)
    assert_each_prompt_once(tenant, job, _STEPS)
    check_metrics(tenant.run_folder(job), _STEPS)
    assert not tenant.status(job).get("restarts"), "what happens to a node is no failure of the job"


def pod_of(tenant: Tenant, job: str, process: str = "driver") -> JobPod:
    """Return the newest pod of a process. Fails where it has none."""
    pod = tenant.newest_pod(job, process)
    assert pod is not None, f"{process} of {job} has no pod"
    return pod


def until_replaced(tenant: Tenant, job: str, before: JobPod) -> JobPod:
    """Wait for another pod of the driver that is scheduled, and return it."""
    successors: list[JobPod] = []

    def is_replaced() -> bool:
        pod = tenant.newest_pod(job, "driver")
        if pod is not None and pod.uid != before.uid and pod.node:
            successors.append(pod)
        return bool(successors)

    tenant.until(is_replaced, f"another pod than {before.name}", _LOST_SECONDS)
    return successors[0]


def show_last_lines(log: str) -> None:
    print("the log of the first driver ends:", *log.splitlines()[-6:], sep="\n")


@pytest.mark.full
def test_a_job_waits_for_a_node_that_does_not_answer(second_node: Node, tenant: Tenant) -> None:
    start(tenant, second_node, "waits")
    before = pod_of(tenant, "waits")
    with kubelet_stopped(second_node):
        tenant.until_message(
            "waits",
            "cannot be replaced",
            f"its node {second_node.name} {_NOT_CONFIRMED}",
            seconds=_LOST_SECONDS,
        )
        assert pod_of(tenant, "waits") == before
        assert second_node.runs_pod(before.uid)
    until_replaced(tenant, "waits", before)
    assert not second_node.runs_pod(before.uid), "the driver was replaced while its predecessor ran"
    tenant.until_beyond("waits", tenant.step("waits"), "after its node answered again", 300)
    finish(tenant, "waits")


@pytest.mark.full
def test_two_drivers_of_a_job_run_after_a_forced_deletion(second_node: Node, tenant: Tenant) -> None:
    start(tenant, second_node, "forced", forceDeleteLostPods=True)
    before = pod_of(tenant, "forced")
    with kubelet_stopped(second_node):
        successor = until_replaced(tenant, "forced", before)
        assert second_node.runs_pod(before.uid), "the first driver ended before its successor began"
        assert successor.node == "real-0"
        # Not the step in the status: the first driver goes on until its successor has a fence.
        tenant.until(lambda: tenant.history("forced")[-1]["fence"] > 1, "a step of the successor", 300)
        show_last_lines(second_node.pod_log(tenant.namespace, before.name, before.uid))
    tenant.until(lambda: not second_node.runs_pod(before.uid), "the end of the first driver")
    tenant.until_beyond("forced", tenant.step("forced"), "after the node answered again", 300)
    finish(tenant, "forced")


@pytest.mark.full
def test_a_job_leaves_a_drained_node(second_node: Node, tenant: Tenant, cluster: Cluster) -> None:
    start(tenant, second_node, "drained")
    set_pace(tenant, 1.0)
    before = pod_of(tenant, "drained")
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    cluster.kubectl("drain", second_node.name, *options, timeout=130)
    until_replaced(tenant, "drained", before)
    tenant.until_beyond("drained", tenant.step("drained"), "on the other node", 300)
    assert set(tenant.pod_nodes().values()) == {"real-0"}
    cluster.kubectl("uncordon", second_node.name)
    finish(tenant, "drained")


@pytest.mark.full
@pytest.mark.parametrize("remedy", ["taint", "deletion"])
def test_a_job_leaves_a_machine_that_is_known_to_be_off(
    second_node: Node, tenant: Tenant, cluster: Cluster, remedy: str
) -> None:
    start(tenant, second_node, "off")
    before = pod_of(tenant, "off")
    second_node.close()
    cluster.kubectl.wait_for(f"node/{second_node.name}", "condition=Ready=Unknown", seconds=120)
    if remedy == "taint":
        taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
        cluster.kubectl("taint", "node", second_node.name, taint)
    else:
        cluster.kubectl("delete", "node", second_node.name, "--timeout=30s")
    until_replaced(tenant, "off", before)
    tenant.until_beyond("off", tenant.step("off"), "without the machine", 300)
    finish(tenant, "off")


@pytest.mark.full
def test_a_job_survives_random_deletions_of_every_pod(
    second_node: Node, tenant: Tenant, pod_minutes: float
) -> None:
    start(tenant, second_node, "random")
    seconds = 60 * pod_minutes
    # The job cannot end before the deletions do.
    set_pace(tenant, 1.2 * seconds / _STEPS)
    deletions = delete_at_random(tenant, "random", seconds, random.Random(7))
    print(f"{sum(deletions.values())} deletions: {dict(deletions)}")
    assert tenant.status("random")["phase"] != "Succeeded"
    began = time.monotonic()
    set_pace(tenant, 1.0)
    tenant.until_beyond("random", tenant.step("random"), "after the deletions", 300)
    print(f"a step {time.monotonic() - began:.0f} s after the last deletion")
    finish(tenant, "random")
