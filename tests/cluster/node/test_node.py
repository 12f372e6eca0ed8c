"""Pods on the real node: security, DNS, Services, volumes, rights and ends."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cluster.support.cluster import Cluster
from cluster.support.host_bind import HOST_BIND
from cluster.support.kubectl import KubectlFailed

# Security context of the Pod Security level `restricted`.
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def python(name: str, code: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a pod that runs Python code in the host-bind image with a restricted security context."""
    main = {
        "name": "main",
        "image": HOST_BIND,
        "command": ["python", "-u", "-c", textwrap.dedent(code)],
        "securityContext": RESTRICTED,
        "volumeMounts": spec.pop("mounts", []),
    }
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main], **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": body,
    }


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def output(cluster: Cluster, namespace: str, pod: str) -> str:
    """Wait until a pod has succeeded, and return its log."""
    condition = "jsonpath={.status.phase}=Succeeded"
    cluster.kubectl.wait_for(f"pod/{pod}", condition, namespace=namespace, seconds=120)
    return cluster.kubectl("logs", "-n", namespace, pod)


SERVER = """
    import http.server, sys
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")
    print("up")
    http.server.HTTPServer(("", 8080), Answer).serve_forever()
"""


def asks(*hosts: str) -> str:
    """Return Python code that sends a request to each host, retries, and prints the answers."""
    return f"""
        import time, urllib.request
        for host in {hosts!r}:
            end = time.monotonic() + 40
            while True:
                try:
                    print(host, urllib.request.urlopen(f"http://{{host}}:8080", timeout=2).read().decode())
                    break
                except OSError as error:
                    if time.monotonic() > end:
                        raise SystemExit(f"{{host}}: {{error}}")
                    time.sleep(0.1)
    """


def test_a_restricted_pod_runs_the_project_s_python_without_volumes(
    cluster: Cluster, cluster_namespace: str
) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", cluster_namespace, label)
    cluster.kubectl.apply(
        python("runs", "import kubealign, os; print(kubealign.__name__, os.getuid())"),
        namespace=cluster_namespace,
    )
    assert output(cluster, cluster_namespace, "runs") == "kubealign 65532\n"
    lax = python("lax", "pass")
    lax["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(KubectlFailed, match="violates PodSecurity"):
        cluster.kubectl.apply(lax, namespace=cluster_namespace)


def test_pods_find_each_other_by_headless_name_and_by_service(
    cluster: Cluster, cluster_namespace: str
) -> None:
    labels = {"app": "server"}
    ports = [{"port": 8080}]
    cluster.kubectl.apply(
        service("group", clusterIP="None", selector=labels, ports=ports, publishNotReadyAddresses=True),
        service("front", selector=labels, ports=ports),
        python("server", SERVER, labels=labels, hostname="rank-0", subdomain="group"),
        namespace=cluster_namespace,
    )
    full = f"rank-0.group.{cluster_namespace}.svc.cluster.local"
    cluster.kubectl.apply(python("asker", asks(full, "rank-0.group", "front")), namespace=cluster_namespace)
    assert output(cluster, cluster_namespace, "asker").split("\n")[:3] == [
        f"{full} here",
        "rank-0.group here",
        "front here",
    ]


def test_a_pod_reaches_itself_by_its_service(cluster: Cluster, cluster_namespace: str) -> None:
    labels = {"app": "own"}
    both = f"import threading\n{textwrap.dedent(SERVER)}".replace(
        "http.server.HTTPServer", "server = http.server.HTTPServer"
    ).replace(".serve_forever()", "\nthreading.Thread(target=server.serve_forever, daemon=True).start()\n")
    cluster.kubectl.apply(
        service("own", selector=labels, ports=[{"port": 8080}]),
        python("own", both + textwrap.dedent(asks("own")), labels=labels),
        namespace=cluster_namespace,
    )
    assert "own here" in output(cluster, cluster_namespace, "own")


def test_a_volume_keeps_what_pods_write(cluster: Cluster, cluster_namespace: str, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    cluster.volume("runs", cluster_namespace, folder)
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    mounts = [{"name": "runs", "mountPath": "/runs"}]
    code = "open('/runs/told', 'w').write('from the pod')"
    cluster.kubectl.apply(python("writer", code, volumes=volumes, mounts=mounts), namespace=cluster_namespace)
    output(cluster, cluster_namespace, "writer")
    assert (folder / "told").read_text() == "from the pod"


def test_a_pod_with_rights_calls_the_api_server(cluster: Cluster, cluster_namespace: str) -> None:
    cluster.kubectl("create", "serviceaccount", "reader", "-n", cluster_namespace)
    cluster.kubectl("create", "role", "reads", "-n", cluster_namespace, "--verb=list", "--resource=pods")
    account = f"--serviceaccount={cluster_namespace}:reader"
    cluster.kubectl("create", "rolebinding", "reads", "-n", cluster_namespace, "--role=reads", account)
    code = f"""
        from kubernetes import client, config
        config.load_incluster_config()
        core = client.CoreV1Api()
        print([pod.metadata.name for pod in core.list_namespaced_pod({cluster_namespace!r}).items])
        try:
            core.list_namespaced_secret({cluster_namespace!r})
        except client.ApiException as error:
            print(error.status)
    """
    cluster.kubectl.apply(python("calls", code, serviceAccountName="reader"), namespace=cluster_namespace)
    assert output(cluster, cluster_namespace, "calls") == "['calls']\n403\n"


def test_a_failed_pod_reports_exit_code_and_message(cluster: Cluster, cluster_namespace: str) -> None:
    code = "open('/dev/termination-log', 'w').write('bad spec'); raise SystemExit(78)"
    cluster.kubectl.apply(python("fails", code), namespace=cluster_namespace)
    cluster.kubectl.wait_for("pod/fails", "jsonpath={.status.phase}=Failed", namespace=cluster_namespace)
    path = "jsonpath={.status.containerStatuses[0].state.terminated}"
    state = json.loads(cluster.kubectl("get", "pod", "fails", "-n", cluster_namespace, "-o", path))
    assert (state["exitCode"], state["message"]) == (78, "bad spec")


def test_a_pod_ends_at_a_deadline_that_it_got_later(cluster: Cluster, cluster_namespace: str) -> None:
    cluster.kubectl.apply(python("long", "import signal; signal.pause()"), namespace=cluster_namespace)
    cluster.kubectl.wait_for("pod/long", "condition=Ready", namespace=cluster_namespace)
    patch = '{"spec": {"activeDeadlineSeconds": 1}}'
    cluster.kubectl("patch", "pod", "long", "-n", cluster_namespace, "-p", patch)
    cluster.kubectl.wait_for("pod/long", "jsonpath={.status.phase}=Failed", namespace=cluster_namespace)
    path = "jsonpath={.status.reason}"
    reason = cluster.kubectl("get", "pod", "long", "-n", cluster_namespace, "-o", path)
    assert reason == "DeadlineExceeded"


def test_a_missing_image_is_reported_within_seconds(cluster: Cluster, cluster_namespace: str) -> None:
    nowhere = python("nowhere", "pass")
    nowhere["spec"]["containers"][0]["image"] = "nowhere.invalid/image:1"
    cluster.kubectl.apply(nowhere, namespace=cluster_namespace)
    path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImagePull"
    cluster.kubectl.wait_for("pod/nowhere", path, namespace=cluster_namespace, seconds=30)


def test_memory_beyond_the_limit_is_reported_as_such(cluster: Cluster, cluster_namespace: str) -> None:
    hungry = python("hungry", "import time; taken = bytearray(200 << 20); time.sleep(60)")
    hungry["spec"]["containers"][0]["resources"] = {"limits": {"memory": "50Mi"}}
    cluster.kubectl.apply(hungry, namespace=cluster_namespace)
    path = "jsonpath={.status.containerStatuses[0].state.terminated.reason}=OOMKilled"
    cluster.kubectl.wait_for("pod/hungry", path, namespace=cluster_namespace)


def test_commands_run_in_pods_and_sigterm_reaches_them(cluster: Cluster, cluster_namespace: str) -> None:
    code = """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
        print("waiting")
        signal.pause()
    """
    cluster.kubectl.apply(
        python("waits", code, terminationGracePeriodSeconds=30), namespace=cluster_namespace
    )
    cluster.kubectl.wait_for("pod/waits", "condition=Ready", namespace=cluster_namespace)
    stdout = cluster.kubectl("exec", "-n", cluster_namespace, "waits", "--", "python", "-c", "print(6 * 7)")
    assert stdout == "42\n"
    follow = cluster.kubectl.start("logs", "-f", "-n", cluster_namespace, "waits")
    cluster.kubectl("delete", "pod", "waits", "-n", cluster_namespace, "--timeout=25s")
    assert "told to end" in follow.communicate(timeout=30)[0]


def test_pods_of_two_nodes_reach_each_other_and_share_a_volume(
    cluster: Cluster, cluster_namespace: str, tmp_path: Path
) -> None:
    cluster.volume("runs", cluster_namespace, tmp_path / "shared")
    volumes = [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}]
    mounts = [{"name": "runs", "mountPath": "/runs"}]
    with cluster.further_node("real-1", tmp_path / "real-1"):
        nodes = ("real-0", "real-1")
        for node in nodes:
            labels = {"app": f"on-{node}"}
            cluster.kubectl.apply(
                service(f"on-{node}", selector=labels, ports=[{"port": 8080}]),
                python(f"server-{node}", SERVER, labels=labels, nodeName=node),
                namespace=cluster_namespace,
            )
        for node, other in zip(nodes, reversed(nodes), strict=True):
            code = asks(f"on-{other}") + f"        open('/runs/{node}', 'w').write('written')"
            asker = python(f"asker-{node}", code, nodeName=node, volumes=volumes, mounts=mounts)
            cluster.kubectl.apply(asker, namespace=cluster_namespace)
        for node, other in zip(nodes, reversed(nodes), strict=True):
            assert output(cluster, cluster_namespace, f"asker-{node}") == f"on-{other} here\n"
            assert (tmp_path / "shared" / node).read_text() == "written"
        cluster.kubectl("delete", "pods", "--all", "-n", cluster_namespace, "--timeout=30s")
    assert "real-1" not in cluster.kubectl("get", "nodes", "-o", "name")
