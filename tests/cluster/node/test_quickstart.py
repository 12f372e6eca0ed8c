"""docs/quickstart-kubernetes.md, command by command, on two real nodes with Kueue and an S3 server."""

import json
import shutil
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.support.buildah import missing_for_builds
from cluster.support.built_images import OPERATOR, operator_image
from cluster.support.cluster import Cluster
from cluster.support.console import Console, page_commands
from cluster.support.helm import NAMESPACE, RELEASE, Helm
from cluster.support.host_bind import HOST_BIND, certificate_variables
from cluster.support.kueue import KueueManager, Queues
from cluster.support.node import Node
from cluster.support.paced_jobs import container
from cluster.support.platform import platform_values
from cluster.support.programs import find, program
from support.s3_server import S3Server

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "quickstart-kubernetes.md"
_PROGRAMS = ("helm", "kubectl", "kueue", "versitygw")
_MISSING = [name for name in _PROGRAMS if find(name) is None] + missing_for_builds()

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(_MISSING), reason=f"not here: {', '.join(_MISSING)}"),
    pytest.mark.timeout(7200),
]

_NAMESPACE = "default"
_CLAIM = "arithmetic"
_REGISTRY = "registry.example/ml"
#: The page builds and pushes images; this cluster has them under the same names instead.
_NOT_RUN = ("make images ", "for image in ")
#: Beginning of a command that goes on until it is interrupted -> text that the reader waits for.
_FOLLOWED = {
    "kubectl get aj -w": "arithmetic-sft",
    "kubectl align top ": "arithmetic-sft: ",
    "kubectl align logs ": '"message"',
    "kubectl -n kubealign-system port-forward ": "Forwarding from",
}
_COMMAND_SECONDS = 420.0
_JOBS_SECONDS = 3 * 3600.0
_JOBS = ("arithmetic-sft", "arithmetic-rm", "arithmetic-ppo")


@dataclass
class Reader:
    """A reader of the page: the console, the cluster, and what was seen after a command."""

    cluster: Cluster
    console: Console
    volume: Path
    store: S3Server
    seen: dict[str, Any] = field(default_factory=dict)

    def job(self, name: str) -> dict[str, Any]:
        """Return a job as the API server has it."""
        document: dict[str, Any] = json.loads(self.cluster.kubectl("get", "aj", name, "-o", "json"))
        return document

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of a job."""
        return dict(self.job(name).get("status") or {})

    def run_folder(self, name: str) -> Path:
        """Return the run directory of a job on this machine."""
        return self.volume / "runs" / f"{name}-{self.job(name)['metadata']['uid'][:8]}"

    def until(self, condition: str, what: str, seconds: int = 300) -> None:
        """Wait until a job has a condition, as `kubectl wait` does."""
        limit = f"--timeout={seconds}s"
        self.cluster.kubectl("wait", what, f"--for={condition}", limit, timeout=seconds + 10)


@pytest.fixture
def second_node(cluster: Cluster, tmp_path: Path) -> Iterator[Node]:
    with cluster.further_node("real-1", tmp_path / "real-1") as node:
        yield node


@pytest.fixture
def images(cluster: Cluster, second_node: Node) -> None:
    """The images of the page on both nodes, as if they had been pulled."""
    for node in (cluster.node, second_node):
        node.import_image(operator_image())
        for name in ("operator", "services", "dashboard", "nats"):
            image = OPERATOR if name == "operator" else HOST_BIND
            node.name_image(f"docker.io/library/{image}", f"{_REGISTRY}/kubealign-{name}:0.1.0")


@pytest.fixture
def store(cluster: Cluster, tmp_path: Path) -> Iterator[S3Server]:
    with S3Server(tmp_path / "s3", cluster.control_plane.host) as server:
        yield server


@pytest.fixture
def checkout(cluster: Cluster, store: S3Server, tmp_path: Path) -> Path:
    """Copy of what the page's commands read, with the reader's own file."""
    folder = tmp_path / "checkout"
    for name in ("charts", "examples"):
        shutil.copytree(ROOT / name, folder / name)
    variables = "".join(f"{name}={value}\n" for name, value in store.environment().items())
    (folder / "bucket.env").write_text(variables)
    return folder


@pytest.fixture
def values(tmp_path: Path) -> Path:
    """Chart values of this cluster, which has no registry: Redis and certificates are this machine's."""
    variables = [{"name": name, "value": value} for name, value in certificate_variables().items()]
    chosen = {
        "redis": platform_values()["redis"],
        "jobs": {"podTemplate": container(env=variables)},
    }
    return Helm(tmp_path / "helm").values(chosen)


@pytest.fixture
def reader(
    cluster: Cluster, images: None, store: S3Server, checkout: Path, tmp_path: Path
) -> Iterator[Reader]:
    """A reader in the checkout, in a cluster with Kueue and storage for one claim."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("helm", "kubectl"):
        (programs / name).symlink_to(program(name))
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    cluster.kubectl.apply(_volume(volume))
    paths = [programs, Path(sys.executable).parent]
    console = Console(checkout, {"KUBECONFIG": str(cluster.control_plane.kubeconfig)}, paths)
    with KueueManager(cluster.control_plane, tmp_path / "kueue") as kueue:
        yield Reader(cluster, console, volume, store)
        _clean_up(cluster, checkout)
        kueue.uninstall()


def _volume(folder: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": _CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "2Gi"},
            "claimRef": {"namespace": _NAMESPACE, "name": _CLAIM},
            "hostPath": {"path": str(folder)},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }


def _clean_up(cluster: Cluster, checkout: Path) -> None:
    """Delete all that the page's commands have created."""
    kubectl, limit = cluster.kubectl, "--timeout=120s"
    kubectl("delete", "aj", "--all", "--ignore-not-found", limit, timeout=130)
    kubectl(
        "delete", "-f", str(checkout / "examples/queue/queues.yaml"), "--ignore-not-found", limit, timeout=130
    )
    helm = Helm(checkout / "helm", cluster.control_plane.kubeconfig)
    helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--ignore-not-found", "--wait", timeout=180)
    kubectl("delete", "crd", "alignmentjobs.kubealign.dev", "--ignore-not-found", limit, timeout=130)
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", limit, timeout=130)
    names = ("job/arithmetic-data", "configmap/arithmetic", "secret/bucket", f"pvc/{_CLAIM}")
    kubectl("delete", *names, "--ignore-not-found", limit, timeout=130)
    kubectl("delete", "pv", _CLAIM, "--ignore-not-found", limit, timeout=130)


def _dashboard_answers(reader: Reader) -> None:
    """Fetch the page of the dashboard through the reader's port-forward."""
    with urllib.request.urlopen("http://localhost:8080/", timeout=10) as answer:
        assert b"<title>" in answer.read()


def _spread_over_nodes(reader: Reader) -> None:
    selector = "kubealign.dev/job=arithmetic-sft"
    nodes = reader.cluster.kubectl(
        "get", "pods", "-l", selector, "-o", "jsonpath={.items[*].spec.nodeName}"
    ).split()
    assert set(nodes) == {"real-0", "real-1"}, nodes


def _preempted(reader: Reader) -> None:
    """Wait until the urgent job has the quota, and remember the step to which the other job is saved."""
    reader.until("condition=Admitted=False", "aj/arithmetic-sft")
    reader.until("condition=Admitted", "aj/urgent")
    status = reader.status("arithmetic-sft")
    assert status["phase"] == "Pending"
    assert "waits in queue align of Kueue" in status["message"], status
    reader.seen["saved"] = int(status["step"])
    commits = [path.name for path in (reader.run_folder("arithmetic-sft") / "commits").iterdir()]
    assert any(name.startswith(f"step-{reader.seen['saved']:08d}") for name in commits), commits


def _finished(reader: Reader) -> None:
    """Check that all jobs have ended well, that the preempted one went on, and that no quota is in use."""
    for name in (*_JOBS, "urgent"):
        status = reader.status(name)
        assert status["phase"] == "Succeeded", (name, status)
        assert not status.get("restarts"), (name, status)
    assert reader.status("arithmetic-sft")["step"] > reader.seen["saved"]
    # The quota returns when the last process has ended.
    Queues(reader.cluster.control_plane, _NAMESPACE).wait_for_no_usage("main")


def _result_is_a_model(reader: Reader) -> None:
    folder = reader.console.folder / "aligned"
    expected = reader.run_folder("arithmetic-ppo") / "result"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in expected.iterdir()
    }
    assert "-result-" not in reader.cluster.kubectl("get", "pods", "-o", "name"), "it came from the bucket"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokens = AutoTokenizer.from_pretrained(folder)("46+37=", return_tensors="pt")
    with torch.no_grad():
        assert model(**tokens).logits.isfinite().all()


#: Beginning of a command -> what a reader sees after it; for a command that is followed, while it runs.
_CHECKS: dict[str, Callable[[Reader], None]] = {
    "kubectl -n kubealign-system port-forward ": _dashboard_answers,
    "kubectl align wait arithmetic-sft ": _spread_over_nodes,
    "kubectl apply -f examples/queue/urgent.yaml": _preempted,
    "kubectl align wait arithmetic-ppo ": _finished,
    "kubectl align result ": _result_is_a_model,
}


def _of(table: dict[str, Any], command: str) -> Any:
    return next((value for beginning, value in table.items() if command.startswith(beginning)), None)


def test_every_command_of_the_page_does_what_the_page_says(reader: Reader, values: Path) -> None:
    console = reader.console
    checks = set(_CHECKS)
    for command in page_commands(PAGE):
        if command.startswith(_NOT_RUN):
            continue
        if command.startswith(("R=", "set -a")):
            console.remember(command)
            continue
        command = command.replace("NAMESPACE", _NAMESPACE).replace("ACCOUNT", "default")
        if command.startswith("helm install"):
            command += f" -f {values}"
        print(f"$ {command}", flush=True)
        check = _of(_CHECKS, command)
        if expected := _of(_FOLLOWED, command):
            with console.watch(command, expected, _COMMAND_SECONDS):
                if check:
                    check(reader)
        else:
            seconds = _JOBS_SECONDS if "arithmetic-ppo --timeout" in command else _COMMAND_SECONDS
            print(console.run(command, seconds), flush=True)
            if check:
                check(reader)
        checks -= {beginning for beginning in checks if command.startswith(beginning)}
    assert not checks, f"the page has no such commands: {checks}"
