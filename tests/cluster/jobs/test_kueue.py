"""A job in real pods that Kueue admits, preempts and admits again, and whose result is in object storage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.support.cluster import Cluster
from cluster.support.helm import CHART, NAMESPACE, RELEASE, Helm
from cluster.support.host_bind import certificate_variables
from cluster.support.kueue import KueueManager, Queues
from cluster.support.paced_jobs import assert_each_prompt_once, container, paced_job, prepare, set_pace
from cluster.support.platform import platform_values
from cluster.support.programs import find
from cluster.support.tenant import Tenant
from kubealign import AlignmentClient
from kubealign.labels import QUEUE_LABEL, QUEUE_PRIORITY_LABEL
from support.s3_server import BUCKET, S3Server

# The life of a queued job without real pods is in tests/cluster/kueue.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.full]

_STEPS = 40
_QUEUE = "align"
_UPGRADE_SECONDS = 180.0
#: One job requests 300m: four pods of 50m, and a bus of 100m.
_QUOTA = {"cpu": "350m", "memory": "64Gi"}


def upgrade(helm: Helm, *, kueue: bool) -> None:
    """Let the operator use Kueue, or not, and wait until its new pods are ready."""
    values = str(helm.values({**platform_values(), "kueue": {"enabled": kueue}}))
    where = ("--namespace", NAMESPACE, "-f", values, "--set", "crds.keep=false")
    waiting = ("--wait", "--timeout", f"{_UPGRADE_SECONDS:.0f}s")
    helm("upgrade", RELEASE, str(CHART), *where, *waiting, timeout=_UPGRADE_SECONDS + 30)


@pytest.fixture
def queues(cluster: Cluster, platform: Helm, tenant: Tenant, tmp_path: Path) -> Iterator[Queues]:
    """Kueue beside the platform, and the tenant's queues."""
    if find("kueue") is None:
        pytest.skip("kueue is not built: `make cluster-tools`")
    with KueueManager(cluster.control_plane, tmp_path / "kueue") as kueue:
        upgrade(platform, kueue=True)
        queues = Queues(cluster.control_plane, tenant.namespace)
        yield queues
        tenant.kubectl("delete", "alignmentjobs", "--all", "--timeout=60s", timeout=70)
        queues.delete()
        upgrade(platform, kueue=False)
        kueue.uninstall()


@pytest.fixture
def store(cluster: Cluster, tmp_path: Path) -> Iterator[S3Server]:
    """A real S3 server on an address of this machine that pods reach."""
    if find("versitygw") is None:
        pytest.skip("versitygw is not built: `make storage-tools`")
    with S3Server(tmp_path / "s3", cluster.control_plane.host) as server:
        yield server


def test_a_preempted_job_saves_waits_and_goes_on(
    tenant: Tenant, queues: Queues, store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flavor = queues.add_flavor()
    cluster_queue = queues.add_cluster_queue("main", {flavor: _QUOTA})
    queues.add_local_queue(_QUEUE, cluster_queue)
    urgent = queues.add_priority_class("urgent", 100)
    prepare(tenant, _STEPS)

    low = paced_job("low", _STEPS)
    low["metadata"]["labels"] = {QUEUE_LABEL: _QUEUE}
    low["spec"]["checkpoint"]["uri"] = f"s3://{BUCKET}/low"
    variables = store.environment() | certificate_variables()
    with_keys = container(env=[{"name": name, "value": value} for name, value in variables.items()])
    low["spec"]["controlPods"] = {"prepare": with_keys, "driver": with_keys}
    tenant.apply(low)
    tenant.until_beyond("low", 1, "at the start")
    high = paced_job("high", 2)
    high["metadata"]["labels"] = {QUEUE_LABEL: _QUEUE, QUEUE_PRIORITY_LABEL: urgent}
    tenant.apply(high)

    tenant.until_message("low", f"waits in queue {_QUEUE} of Kueue")
    saved = tenant.step("low")
    assert tenant.status("low")["phase"] == "Pending"
    assert f"at step {saved}, " in tenant.message("low")
    # The last step before the preemption is in a checkpoint.
    checkpoints = [path.name for path in (tenant.run_folder("low") / "commits").iterdir()]
    assert any(name.startswith(f"step-{saved:08d}") for name in checkpoints), checkpoints
    tenant.until_phase("high", "Succeeded", 300)
    tenant.until_beyond("low", saved, "after the other job")
    set_pace(tenant, 0.0)
    tenant.until_phase("low", "Succeeded", 300)
    assert_each_prompt_once(tenant, "low", _STEPS)
    assert not tenant.status("low").get("restarts")
    queues.wait_for_no_usage(cluster_queue)

    # The copy has all checkpoints of the job and its result, which needs no volume any more.
    uploaded = [path.name for path in (store.objects / "low" / "checkpoints").iterdir()]
    assert any(name.startswith(f"step-{_STEPS:08d}") for name in uploaded), uploaded
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    expected = {path.name: path.read_bytes() for path in (tenant.run_folder("low") / "result").iterdir()}
    with AlignmentClient.cluster(tenant.control_plane.kubeconfig, namespace=tenant.namespace) as client:
        fetched = client.result("low", tmp_path / "result")
    assert {path.name: path.read_bytes() for path in fetched.iterdir()} == expected
    assert not [name for name in tenant.pods() if "-result-" in name], "it came from the store"
