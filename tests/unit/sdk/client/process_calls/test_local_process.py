"""Processes of a run directory: names, addresses, certificates."""

from pathlib import Path

import pytest

from kubealign.client.errors import JobNotFound, NotPossible
from kubealign.client.process_calls.local_process import LocalProcess, locate_process, select_process
from kubealign.client.records import JobRef, ProcessRecord, ProcessState
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.runner.settings import write_settings
from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess, Role, TlsFiles
from support.bad_specs import whole_job
from support.memory_backend import MemoryBackend

REF = JobRef("default", "ppo")
NAMES = (
    "nats",
    "redis",
    "prepare",
    "trainer-0",
    "trainer-1",
    "reward-helpful-0",
    "rollout-0-r1",
    "rollout-0",
)


def record(name: str, state: ProcessState = ProcessState.READY, message: str = "") -> ProcessRecord:
    role = "reward" if name.startswith("reward") else name.split("-")[0]
    return ProcessRecord(name, role, state, message=message)


@pytest.fixture
async def site() -> MemoryBackend:
    site = MemoryBackend()
    await site.create(whole_job("ppo"))
    return site


def write(runs: Path, name: str, listen: str | None) -> None:
    folder = RunDirectory(runs / REF.name)
    folder.create()
    tls = TlsFiles(ca=Path("/ca"), certificate=Path("/c"), key=Path("/k"))
    settings = ProcessSettings(
        name=name,
        role=Role.ROLLOUT,
        job=folder.job,
        run_dir=folder.root,
        shared_memory=folder.root,
        listen=listen,
        tls=tls,
        nats=NatsAccess(url="", user="", password=""),
        redis=RedisAccess(host="", port=1, user="", password="", prefix=""),
        termination=folder.termination_path(name),
    )
    write_settings(settings, folder.settings)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trainer-1", "trainer-1"),
        ("trainer", "trainer-0"),
        ("reward-helpful", "reward-helpful-0"),
        ("reward", "reward-helpful-0"),
        ("rollout", "rollout-0"),
        ("prepare", "prepare"),
    ],
)
def test_role_means_its_first_process(name: str, expected: str) -> None:
    assert select_process(REF, [record(name) for name in NAMES], name).name == expected


@pytest.mark.parametrize("name", ["nats", "redis", "teacher", "rollout-7", ""])
def test_unknown_process_lists_the_processes(name: str) -> None:
    with pytest.raises(
        NotPossible, match=f"default/ppo has no process {name}: there are prepare, trainer-0, "
    ):
        select_process(REF, [record(name) for name in NAMES], name)


async def test_process_is_located_by_its_settings(site: MemoryBackend, tmp_path: Path) -> None:
    site.status(REF, phase="Running")
    site.staff(REF, record("rollout-0"), record("rollout-1"))
    write(tmp_path, "rollout-0", "127.0.0.1:7")
    expected = LocalProcess("rollout-0", "127.0.0.1:7", tmp_path / "ppo" / "tls")
    assert await locate_process(site, tmp_path, REF, "rollout") == expected
    with pytest.raises(NotPossible, match=r"rollout-1 has not started yet: there is no .*rollout-1.json"):
        await locate_process(site, tmp_path, REF, "rollout-1")
    write(tmp_path, "rollout-1", None)
    with pytest.raises(NotPossible, match="rollout-1 of default/ppo has no gRPC server"):
        await locate_process(site, tmp_path, REF, "rollout-1")


async def test_job_that_does_not_run_states_its_phase(site: MemoryBackend, tmp_path: Path) -> None:
    with pytest.raises(JobNotFound):
        await locate_process(site, tmp_path, JobRef("default", "nobody"), "rollout")
    site.status(REF, phase="Failed", message="the loss is NaN")
    with pytest.raises(NotPossible, match="default/ppo does not run, it is Failed: the loss is NaN"):
        await locate_process(site, tmp_path, REF, "rollout")


async def test_process_that_does_not_listen_states_its_state(site: MemoryBackend, tmp_path: Path) -> None:
    site.status(REF, phase="Running")
    site.staff(REF, record("rollout-0", ProcessState.RESTARTING, "killed by SIGKILL"))
    write(tmp_path, "rollout-0", "127.0.0.1:7")
    expected = "rollout-0 of default/ppo cannot be called, it is Restarting: killed by SIGKILL"
    with pytest.raises(NotPossible, match=expected):
        await locate_process(site, tmp_path, REF, "rollout-0")


def test_certificate_is_that_of_the_first_allowed_role(tmp_path: Path) -> None:
    process = LocalProcess("rollout-0", "127.0.0.1:7", tmp_path)
    for name in ("driver.pem", "driver-key.pem", "trainer.pem"):
        (tmp_path / name).touch()
    files = process.certificate(["rollout", "trainer", "driver"])
    assert (files.certificate, files.key) == (tmp_path / "driver.pem", tmp_path / "driver-key.pem")
    with pytest.raises(NotPossible, match="may call rollout-0: only rollout, trainer may"):
        process.certificate(["rollout", "trainer"])
    with pytest.raises(NotPossible, match="the contract lets no role do so"):
        process.certificate([])
