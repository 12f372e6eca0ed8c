"""Enforced policies of a job: no other pod enters, pods leave as allowed, and the job trains to its end."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from cluster.support.behaviour import Json
from cluster.support.cluster import Cluster
from cluster.support.host_bind import certificate_variables
from cluster.support.kube_router import KubeRouter
from cluster.support.network_probes import LISTENER_PORT, Prober, Target
from cluster.support.node import Node
from cluster.support.paced_jobs import (
    PROMPTS_PER_STEP,
    assert_each_prompt_once,
    container,
    paced_job,
    prepare,
    set_pace,
)
from cluster.support.policed_platform import Namespaces, Platform, pods_of_component
from cluster.support.programs import find
from cluster.support.spread_jobs import JOBS_ONLY
from cluster.support.tenant import Tenant
from kubealign import AlignmentClient
from kubealign.labels import ROLE_LABEL
from kubealign.pod_contract import GRPC_PORT, HEALTH_PORT, METRICS_PORT, NATS_PORT, RENDEZVOUS_PORT
from support.s3_server import BUCKET, S3Server
from support.tiny_jobs import FROM_CONFIG

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]

_STEPS = 10
_JOB, _OTHER = "ppo", "other"
_START_SECONDS = 400.0
_HOST = "kubernetes.io/hostname"
#: Ports on which each process listens at least; torch's collectives add ports that nobody chooses.
_PORTS = {
    "nats": {NATS_PORT},
    "driver": {METRICS_PORT, HEALTH_PORT},
    "trainer-0": {GRPC_PORT, METRICS_PORT, HEALTH_PORT, RENDEZVOUS_PORT},
    "trainer-1": {METRICS_PORT, HEALTH_PORT},
    "critic-0": {GRPC_PORT, METRICS_PORT, HEALTH_PORT},
    "reference-0": {METRICS_PORT, HEALTH_PORT},
    "rollout-0": {METRICS_PORT, HEALTH_PORT},
    "reward-letters-0": {METRICS_PORT, HEALTH_PORT},
}


@dataclass(frozen=True)
class Running:
    """Two jobs in one namespace: one of many roles that trains, and one whose bus runs."""

    tenant: Tenant
    pods: Mapping[str, Prober]
    other: Prober
    store: S3Server


def job_of_many_roles(store: S3Server, judge_namespace: str) -> Json:
    """Return a PPO job on two nodes, with copies in object storage and a reward that calls a judge."""
    ppo = {
        "promptsPerStep": PROMPTS_PER_STEP,
        "samplesPerPrompt": 2,
        "kl": {"fixed": {"coefficient": 0.02}},
    }
    job = paced_job(_JOB, _STEPS, algorithm={"ppo": ppo}, critic={"model": FROM_CONFIG})
    spec = job["spec"]
    spec["podTemplate"]["spec"]["tolerations"] = [{"key": JOBS_ONLY, "operator": "Exists"}]
    apart = {"topologyKey": _HOST, "labelSelector": {"matchLabels": {ROLE_LABEL: "trainer"}}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    spec["trainer"] |= {"ranks": 2, "podTemplate": {"spec": {"affinity": affinity}}}
    spec["rewards"][0]["egress"] = [
        {"namespace": {"name": judge_namespace}, "ports": [{"port": LISTENER_PORT}]},
    ]
    spec["checkpoint"]["uri"] = f"s3://{BUCKET}/{_JOB}"
    variables = store.environment() | certificate_variables()
    with_keys = container(env=[{"name": name, "value": value} for name, value in variables.items()])
    spec["controlPods"] = {"prepare": with_keys, "driver": with_keys}
    return job


def waiting_job() -> Json:
    """Return a job whose bus runs, and whose preparation has no node."""
    nowhere = {"spec": {"nodeSelector": {_HOST: "none"}}}
    return paced_job(_OTHER, _STEPS, controlPods={"prepare": nowhere})


@pytest.fixture(scope="module")
def store(second_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Real S3 server outside the cluster, at another address than the API server."""
    if find("versitygw") is None:
        pytest.skip("versitygw is not built: `make storage-tools`")
    with S3Server(tmp_path_factory.mktemp("s3"), second_node.addresses.machine) as server:
        yield server


@pytest.fixture(scope="module")
def tenant(
    platform: Platform, cluster: Cluster, namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tenant]:
    """The team's namespace with a volume; its jobs are deleted at the end."""
    new_tenant = Tenant(cluster, namespaces.team, tmp_path_factory.mktemp("volume"))
    yield new_tenant
    new_tenant.kubectl("delete", "alignmentjobs", "--all", "--timeout=60s", timeout=70)
    new_tenant.until(lambda: not new_tenant.left("pods"), "the pods to go with their jobs")


@pytest.fixture(scope="module")
def running(tenant: Tenant, store: S3Server, namespaces: Namespaces) -> Running:
    """Both jobs, started while policies are enforced; the larger one has done a step."""
    prepare(tenant, _STEPS)
    tenant.apply(job_of_many_roles(store, namespaces.monitoring), waiting_job())
    tenant.until_beyond(_JOB, 0, "at the start", _START_SECONDS)
    # Slow enough that the job does not end before the test says so.
    set_pace(tenant, 20.0)
    pods = {process: _pod(tenant, _JOB, process) for process in _PORTS}
    nodes = tenant.pod_nodes()
    assert nodes[pods["trainer-0"].pod] != nodes[pods["trainer-1"].pod]
    return Running(tenant, pods, _pod(tenant, _OTHER, "nats"), store)


def _pod(tenant: Tenant, job: str, process: str) -> Prober:
    pod = tenant.newest_pod(job, process)
    assert pod is not None, f"{process} of {job} has no pod"
    return Prober(tenant.control_plane.kubectl, tenant.namespace, pod.name)


def test_only_the_pods_of_a_job_enter_it(
    running: Running, strangers: Mapping[str, Prober], kube_router: KubeRouter, namespaces: Namespaces
) -> None:
    targets: set[Target] = set()
    for process, pod in running.pods.items():
        listening = pod.listening()
        assert {target.port for target in listening} >= _PORTS[process], process
        targets |= listening
    metrics_pages = {target for target in targets if target.port == METRICS_PORT}
    assert len(metrics_pages) == len(_PORTS) - 1, "of every process but the bus"
    closed = min(targets - metrics_pages)

    for process in ("trainer-0", "trainer-1", "rollout-0"):
        assert running.pods[process].reached(targets) == targets, process
    for stranger in strangers.values():
        assert stranger.reached(targets) == metrics_pages, stranger.pod
    assert not running.other.reached(targets), "a pod of another job of the namespace"

    # The same connections succeed where a further policy allows them: the policies refused them.
    with kube_router.everything_allowed(namespaces.team, strangers["foreigner"], closed):
        for stranger in (*strangers.values(), running.other):
            assert stranger.reached(targets) == targets, stranger.pod


def test_the_pods_of_a_job_leave_it_only_as_allowed(
    running: Running,
    strangers: Mapping[str, Prober],
    cluster: Cluster,
    kube_router: KubeRouter,
    namespaces: Namespaces,
) -> None:
    [redis_pod] = pods_of_component(cluster, "redis")
    [redis] = redis_pod.listening()
    [operator, _] = pods_of_component(cluster, "operator")
    [metrics] = [target for target in operator.listening() if target.port == 8080]
    [teammate, foreigner, judge] = [
        target for name in ("teammate", "foreigner", "monitor") for target in strangers[name].listening()
    ]
    storage = Target("object storage", *running.store.address)
    control_plane = cluster.control_plane
    service = cluster.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
    api_server = {
        Target("API server", control_plane.host, control_plane.port),
        Target("kubernetes", service, 443),
    }
    pods_of_others = {metrics, teammate, foreigner, judge}
    targets = {redis, storage, *pods_of_others, *api_server}

    expected = {process: {redis} for process in _PORTS}
    expected["reward-letters-0"] |= {judge}
    # Its object storage may be a pod of the cluster.
    expected["driver"] |= {storage, *pods_of_others}
    assert {process: pod.reached(targets) for process, pod in running.pods.items()} == expected
    host = "kubernetes.default.svc.cluster.local"
    assert {pod.resolve(host) for pod in running.pods.values()} == {service}

    with kube_router.everything_allowed(namespaces.team, running.pods["rollout-0"], foreigner):
        for process, pod in running.pods.items():
            assert pod.reached(targets) == targets, process


def test_the_job_trains_to_its_end(running: Running) -> None:
    tenant = running.tenant
    # Ends the job of the tests above.
    set_pace(tenant, 0.0)
    tenant.until_phase(_JOB, "Succeeded", 300)
    assert_each_prompt_once(tenant, _JOB, _STEPS)
    assert not tenant.status(_JOB).get("restarts")
    uploaded = [path.name for path in (running.store.objects / _JOB / "checkpoints").iterdir()]
    assert any(name.startswith(f"step-{_STEPS:08d}") for name in uploaded), uploaded
    # Metrics come from the dashboard, which the API server reaches as networkPolicy.dashboardFrom says.
    with AlignmentClient.cluster(tenant.control_plane.kubeconfig, namespace=tenant.namespace) as client:
        assert [row["step"] for row in client.metrics(_JOB)] == list(range(1, _STEPS + 1))
        assert list(client.logs(_JOB, process="driver", tail=1))
