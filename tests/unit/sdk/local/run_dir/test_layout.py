"""Run directory: one runner at a time, one job per directory, no deletion of other folders."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kubealign.local.errors import RunRefused
from kubealign.local.processes.ports import PortAllocator
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.status import Phase, RunStatus, read_status
from kubealign.local.runner.admission import admit, run_directory, succeeded_in
from kubealign.spec.job import AlignmentJob

JOB = """
apiVersion: kubealign.dev/v1alpha1
kind: AlignmentJob
metadata: {name: tiny}
spec:
  maxSteps: 10
  algorithm: {sft: {}}
  policy: {model: {path: /nowhere}}
  data: {demonstrations: {source: {path: /nowhere.jsonl}, format: {text: {}}}}
"""


@pytest.fixture
def job() -> AlignmentJob:
    return AlignmentJob.from_yaml(JOB)


def ended(folder: RunDirectory, job: AlignmentJob, phase: Phase) -> None:
    folder.create()
    folder.job.write_text(job.model_dump_json(by_alias=True))
    RunStatus(phase=phase, runner=1, started_at=0.0).write(folder.status)


def test_lock_error_names_the_holder(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "tiny")
    lock = folder.lock()
    lock.acquire()
    program = (
        "import sys; from pathlib import Path; from kubealign.local.run_dir.layout import RunDirectory\n"
        f"RunDirectory(Path({str(folder.root)!r})).lock().acquire()"
    )
    second = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    import os

    assert f"is in use by another kubealign run (process {os.getpid()})" in second.stderr
    lock.release()
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr


def test_a_first_run_is_admitted(tmp_path: Path, job: AlignmentJob) -> None:
    assert not admit(job, run_directory(tmp_path, "tiny")).is_finished
    assert not succeeded_in(tmp_path)("tiny")


@pytest.mark.parametrize(
    ("phase", "finished"),
    [(Phase.SUCCEEDED, True), (Phase.FAILED, False), (Phase.STOPPED, False), (Phase.RUNNING, False)],
)
def test_only_succeeded_runs_count_as_finished(
    tmp_path: Path, job: AlignmentJob, phase: Phase, finished: bool
) -> None:
    folder = run_directory(tmp_path, "tiny")
    ended(folder, job, phase)
    assert admit(job, folder).is_finished is finished
    assert succeeded_in(tmp_path)("tiny") is finished


def test_different_job_of_the_same_name_is_rejected(tmp_path: Path, job: AlignmentJob) -> None:
    folder = run_directory(tmp_path, "tiny")
    ended(folder, job, Phase.STOPPED)
    other = AlignmentJob.from_yaml(JOB.replace("sft: {}", "sft: {rowsPerStep: 8}"))
    with pytest.raises(RunRefused, match=r"differs in spec.algorithm.sft.rowsPerStep \(64, now 8\).*--fresh"):
        admit(other, folder)


@pytest.mark.parametrize("name", ["job.json", "status.json"])
def test_damaged_file_is_reported(tmp_path: Path, job: AlignmentJob, name: str) -> None:
    folder = run_directory(tmp_path, "tiny")
    ended(folder, job, Phase.STOPPED)
    (folder.root / name).write_text('{"phase": ')
    with pytest.raises(RunRefused, match=f"{name} .*--fresh"):
        admit(job, folder)


def test_status_round_trips_through_its_file(tmp_path: Path) -> None:
    status = RunStatus(
        phase=Phase.FAILED,
        message="why",
        step=3,
        runner=7,
        started_at=1.5,
        ended_at=2.5,
        metrics={"a/b": 1.25},
    )
    status.write(tmp_path / "status.json")
    assert read_status(tmp_path / "status.json") == status
    assert json.loads((tmp_path / "status.json").read_text())["phase"] == "Failed"
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_folder_that_is_not_a_run_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunRefused, match="is not the folder of a run"):
        RunDirectory(tmp_path / "tiny").delete()
    assert (tmp_path / "tiny" / "thesis.tex").exists()


def test_delete_removes_the_shared_memory(tmp_path: Path, job: AlignmentJob) -> None:
    folder = run_directory(tmp_path, "tiny")
    ended(folder, job, Phase.RUNNING)
    memory = folder.claim_shared_memory()
    assert memory.stat().st_mode & 0o777 == 0o700
    assert folder.settings.stat().st_mode & 0o777 == 0o700
    folder.delete()
    assert not memory.exists() and not folder.root.exists()


def test_foreign_shared_memory_record_deletes_nothing(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "tiny")
    folder.create()
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    (folder.root / "shared-memory").write_text(str(elsewhere))
    folder.release_shared_memory()
    assert elsewhere.exists()


def test_used_ports_are_skipped_and_none_is_allocated_twice() -> None:
    free = PortAllocator()
    first, second = free.allocate(), free.allocate()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(RunRefused, match="no free port was found"):
            PortAllocator(iter([taken])).allocate()
        del free
        ports = PortAllocator(iter([taken, first, first, second]))
        assert (ports.allocate(), ports.allocate()) == (first, second)
        with pytest.raises(RunRefused, match="no free port was found"):
            ports.allocate()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no server could listen beside it")
def test_port_is_reserved_for_one_run_and_servers_can_listen() -> None:
    run = PortAllocator()
    port = run.allocate()
    with pytest.raises(RunRefused):
        PortAllocator(iter([port])).allocate()
    for _ in range(2):  # a restarted server can reuse the port
        with socket.create_server(("127.0.0.1", port)) as server, pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port))
    server.close()
    del run
    assert PortAllocator(iter([port])).allocate() == port
