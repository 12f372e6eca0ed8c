"""Creation of the run directory, a task of the first pod in a cluster."""

import errno
from pathlib import Path

import pytest

from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess, Role, TlsFiles
from kubealign_services.roles.driver.prepare import create_run_dir
from kubealign_services.runtime.process.failures import PermanentFailure


def settings(job: Path, run_dir: Path) -> ProcessSettings:
    none = Path("none.pem")
    return ProcessSettings(
        name="prepare",
        role=Role.DRIVER,
        job=job,
        run_dir=run_dir,
        shared_memory=run_dir,
        tls=TlsFiles(ca=none, certificate=none, key=none),
        nats=NatsAccess(url="tls://nats:4222", user="job", password="x"),
        redis=RedisAccess(host="redis", port=6379, user="job", password="x", prefix="p:"),
        termination=none,
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "mounted" / "job.json"
    path.parent.mkdir()
    path.write_text('{"kind": "AlignmentJob"}')
    return path


def test_the_document_is_copied_to_the_run_directory(job: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "volume" / "runs" / "sums-1234abcd"
    create_run_dir(settings(job, run_dir))
    assert (run_dir / "job.json").read_text() == job.read_text()
    assert [path.name for path in run_dir.iterdir()] == ["job.json"]


def test_an_existing_document_stays(job: Path, tmp_path: Path) -> None:
    """The job was resumed, or runs on one machine where the document is the job's own file."""
    (tmp_path / "job.json").write_text("{}")
    create_run_dir(settings(job, tmp_path))
    create_run_dir(settings(tmp_path / "job.json", tmp_path))
    assert (tmp_path / "job.json").read_text() == "{}"


def test_a_directory_without_permission_fails_for_good(job: Path) -> None:
    """No directory can be created in /sys."""
    with pytest.raises(PermanentFailure, match=r"folder /sys/runs/sums cannot be written: .* it must"):
        create_run_dir(settings(job, Path("/sys/runs/sums")))


def test_other_disk_errors_are_raised(job: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as failed:
        create_run_dir(settings(job, tmp_path / "file" / "sums"))
    assert failed.value.errno == errno.ENOTDIR
