"""Conversion of a pod's settings into process settings, and errors for missing configuration."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubealign import pod_contract
from kubealign.process_settings import ExitCode, ProcessSettings, Role
from kubealign_services.runtime.process.mounts import Mounts
from kubealign_services.runtime.process.pod_entrypoint import main

JOB: dict[str, Any] = {
    "apiVersion": "kubealign.dev/v1alpha1",
    "kind": "AlignmentJob",
    "metadata": {"name": "sums"},
    "spec": {
        "maxSteps": 1,
        "policy": {"model": {"path": "/policy"}},
        "algorithm": {"rloo": {}},
        "data": {"prompts": {"source": {"path": "/data.jsonl"}}},
        "rewards": [{"name": "score", "function": {"module": "scores:reward"}}],
        "rollout": {"engine": {"torch": {}}, "sampling": {"maxTokens": 4}},
    },
}
POD: dict[str, Any] = {
    "name": "trainer-1",
    "role": "trainer",
    "host": "trainer-1.sums-peers.default.svc",
    "rank": 1,
    "world_size": 2,
    "run_dir": "/volumes/runs/sums-1234abcd",
    "results": {"sft": "/volumes/runs/sft-9/result"},
    "serves": True,
    "peers": {"trainer": "trainer-0.sums-peers.default.svc:7070"},
    "rendezvous": "trainer-0.sums-peers.default.svc:29500",
    "nats_host": "nats.sums-peers.default.svc",
    "redis": {
        "host": "redis.kubealign.svc",
        "user": "sums",
        "prefix": "kubealign:default:sums:",
        "tls": True,
    },
}


class Container:
    """Files that Kubernetes would mount, in a folder."""

    def __init__(self, root: Path) -> None:
        self.mounts = Mounts(root)
        self.environment = {pod_contract.ENV_SETTINGS: json.dumps(POD), pod_contract.ENV_CPUS: "3"}
        for folder in (self.mounts.secrets, self.mounts.runtime, self.mounts.document.parent):
            folder.mkdir(parents=True)
        self.mounts.document.write_text(json.dumps(JOB))
        files = (
            pod_contract.CA_FILE,
            pod_contract.CERTIFICATE_FILE,
            pod_contract.KEY_FILE,
            pod_contract.REDIS_CA_FILE,
        )
        for name in (*files, pod_contract.NATS_PASSWORD_FILE, pod_contract.REDIS_PASSWORD_FILE):
            (self.mounts.secrets / name).write_text(f"the {name}\n")

    def start(self) -> int:
        """Run the entry point with a module without a role main, which is imported last."""
        return main(["pod", "kubealign_services.no_such_role"], self.mounts, self.environment)

    def settings(self) -> ProcessSettings:
        self.start()
        return ProcessSettings.model_validate_json((self.mounts.runtime / "trainer-1.json").read_text())

    def refusal(self) -> str:
        assert self.start() == ExitCode.PERMANENT
        return self.mounts.termination.read_text()


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield Container(tmp_path)
    root.handlers[:] = handlers


def test_settings_of_a_trainer(container: Container) -> None:
    settings = container.settings()
    assert (settings.name, settings.role, settings.rank, settings.world_size) == (
        "trainer-1",
        Role.TRAINER,
        1,
        2,
    )
    assert settings.listen == "0.0.0.0:7070"
    assert settings.advertise == "trainer-1.sums-peers.default.svc:7070"
    assert (settings.metrics, settings.health) == ("0.0.0.0:9090", "0.0.0.0:8081")
    assert settings.rendezvous == "trainer-0.sums-peers.default.svc:29500"
    assert settings.results == {"sft": Path("/volumes/runs/sft-9/result")}
    assert settings.run_dir == Path("/volumes/runs/sums-1234abcd")
    assert settings.threads == 3
    assert settings.nats.url == "tls://nats.sums-peers.default.svc:4222"
    assert settings.nats.password == "the nats-password"
    secrets = container.mounts.secrets
    assert (settings.tls.ca, settings.tls.key) == (secrets / "ca.pem", secrets / "tls-key.pem")
    assert settings.redis.password == "the redis-password"
    assert settings.redis.options["ssl_ca_certs"] == str(secrets / "redis-ca.pem")
    assert settings.termination == container.mounts.termination


def test_ranks_of_one_pod_differ_in_name_rank_and_ports(container: Container) -> None:
    companions = [{"name": "trainer-2", "rank": 2, "serves": True}, {"name": "trainer-3", "rank": 3}]
    pod = POD | {"world_size": 4, "companions": companions}
    container.environment |= {pod_contract.ENV_SETTINGS: json.dumps(pod), pod_contract.ENV_CPUS: "8"}
    # The module cannot be imported, so that the first rank ends at once.
    assert container.start() == 1
    ranks = [
        ProcessSettings.model_validate_json((container.mounts.runtime / f"trainer-{rank}.json").read_text())
        for rank in (1, 2, 3)
    ]
    assert [(rank.name, rank.rank, rank.world_size) for rank in ranks] == [
        ("trainer-1", 1, 4),
        ("trainer-2", 2, 4),
        ("trainer-3", 3, 4),
    ]
    host = "trainer-1.sums-peers.default.svc"
    assert [rank.advertise for rank in ranks] == [f"{host}:7070", f"{host}:7071", None]
    assert [rank.metrics for rank in ranks] == [f"0.0.0.0:{port}" for port in (9090, 9091, 9092)]
    # The pod's own health is at 8081.
    assert [rank.health for rank in ranks] == [f"127.0.0.1:{port}" for port in (8082, 8083, 8084)]
    assert {rank.threads for rank in ranks} == {2}
    assert container.environment["OMP_NUM_THREADS"] == "2"
    assert len({rank.termination for rank in ranks} | {container.mounts.termination}) == 4
    assert {rank.rendezvous for rank in ranks} == {"trainer-0.sums-peers.default.svc:29500"}


def test_settings_file_is_private(container: Container) -> None:
    container.settings()
    assert (container.mounts.runtime / "trainer-1.json").stat().st_mode & 0o777 == 0o600


def test_process_without_metrics_and_server(container: Container) -> None:
    container.environment[pod_contract.ENV_SETTINGS] = json.dumps(POD | {"serves": False, "one_shot": True})
    settings = container.settings()
    assert (settings.listen, settings.advertise, settings.metrics) == (None, None, None)
    assert settings.health == "0.0.0.0:8081"


def test_libraries_use_the_containers_cores_and_the_jobs_volume(container: Container) -> None:
    container.start()
    assert container.environment["OMP_NUM_THREADS"] == "3"
    assert container.environment["HF_HOME"] == "/volumes/runs/.huggingface"


def test_existing_environment_variables_are_kept(container: Container) -> None:
    container.environment |= {"OMP_NUM_THREADS": "1", "HF_HOME": "/cache"}
    container.start()
    assert (container.environment["OMP_NUM_THREADS"], container.environment["HF_HOME"]) == ("1", "/cache")


def test_an_image_without_the_role(container: Container) -> None:
    assert container.refusal().startswith("the image cannot import kubealign_services.no_such_role")


def test_no_settings(container: Container) -> None:
    del container.environment[pod_contract.ENV_SETTINGS]
    assert container.refusal() == (
        "the environment has no KUBEALIGN_SETTINGS: the operator sets it in every pod"
    )


def test_settings_that_a_newer_operator_adds_are_ignored(container: Container) -> None:
    known = container.refusal()
    container.environment[pod_contract.ENV_SETTINGS] = json.dumps(POD | {"color": "red"})
    assert container.refusal() == known
    assert "color" not in known


def test_settings_of_another_kind_are_refused(container: Container) -> None:
    container.environment[pod_contract.ENV_SETTINGS] = json.dumps(POD | {"rank": "first"})
    assert container.refusal().startswith("KUBEALIGN_SETTINGS cannot be used: rank:")


@pytest.mark.parametrize(
    "name",
    [
        pod_contract.CA_FILE,
        pod_contract.KEY_FILE,
        pod_contract.NATS_PASSWORD_FILE,
        pod_contract.REDIS_PASSWORD_FILE,
    ],
)
def test_incomplete_secret(container: Container, name: str) -> None:
    (container.mounts.secrets / name).unlink()
    assert f"there is no {container.mounts.secrets / name}: the job's Secret" in container.refusal()


def test_an_empty_password(container: Container) -> None:
    (container.mounts.secrets / pod_contract.REDIS_PASSWORD_FILE).write_text("\n")
    assert "redis-password is empty" in container.refusal()


def test_no_document(container: Container) -> None:
    container.mounts.document.unlink()
    assert container.refusal() == (
        f"the job cannot be read from {container.mounts.document}: No such file or directory"
    )


def test_a_document_of_another_version(container: Container) -> None:
    container.mounts.document.write_text(json.dumps(JOB | {"spec": JOB["spec"] | {"maxSteps": 0}}))
    assert "is not a job that this image knows: spec.maxSteps:" in container.refusal()


@pytest.mark.parametrize("cores", ["0", "two", "", "1.5"])
def test_invalid_number_of_cores(container: Container, cores: str) -> None:
    container.environment[pod_contract.ENV_CPUS] = cores
    assert container.refusal() == f"KUBEALIGN_CPUS is {cores!r}; it is a number of cores, 1 or more"


def test_shared_memory_transport_is_refused(container: Container) -> None:
    job = json.loads(json.dumps(JOB))
    job["spec"]["rollout"]["refit"] = {"transport": "SharedMemory"}
    container.mounts.document.write_text(json.dumps(job))
    assert container.refusal() == (
        "spec.rollout.refit.transport is SharedMemory, but pods share no memory: set Auto or Stream"
    )


def test_no_runtime_folder(container: Container) -> None:
    container.mounts.runtime.rmdir()
    assert container.refusal() == (
        f"{container.mounts.runtime / 'trainer-1.json'} cannot be written: No such file or directory"
    )
