"""Whole jobs with copies of their checkpoints and results in a real S3 server."""

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.location import StorageLocation
from kubealign_services.checkpoints.history import read_history
from kubealign_services.checkpoints.remote.remote_run import CHECKPOINTS, RESULTS, RemoteRun
from support.running import RunningJobs
from support.s3_server import Fault, FaultyStorageProxy, S3Request
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(300)

#: Longer than the grace period of the job whose upload hangs.
_HANG_SECONDS = 60.0
#: Weights change at each step, by the same schedule whatever the number of steps.
_LEARNS = {"optimizer": {"adamW": {"learningRate": 1.0e-2}, "schedule": {"constant": {}}}}


def make_job(folder: Path, name: str, location: StorageLocation | None, **spec: Any) -> dict[str, Any]:
    checkpoint: dict[str, Any] = {"everySteps": 1, "keep": 2}
    if location is not None:
        checkpoint["uri"] = str(location)
    return sft_job(folder, name, trainer=_LEARNS, checkpoint=checkpoint, **spec)


def driver_log(run: RunningJobs) -> str:
    path = run.folder("copied") / "logs" / "driver.log"
    return path.read_text() if path.exists() else ""


def local_steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (run_dir / "commits").glob("step-*"))


def steps(location: StorageLocation, kind: str) -> list[int]:
    async def read() -> list[int]:
        return [name.step for name in await RemoteRun(Bucket(location)).published(kind)]

    return asyncio.run(read())


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_job_goes_on_bit_for_bit_from_its_copy(
    proxy: FaultyStorageProxy, location: StorageLocation, tmp_path: Path
) -> None:
    uninterrupted = make_job(tmp_path, "whole", None)
    begun = make_job(tmp_path, "copied", location, maxSteps=2)
    with RunningJobs(write_jobs(tmp_path, uninterrupted, begun), tmp_path / "first" / "runs") as run:
        assert run.end(timeout=180.0) == 0, run.output
        reference = run.folder("whole")
        last = run.metrics("copied")[-1]
    assert steps(location, CHECKPOINTS) == [1, 2]
    assert steps(location, RESULTS) == [2]
    assert last["checkpoint/uploaded_step"] in (0.0, 1.0) and last["checkpoint/upload_failures"] == 0.0

    # Another machine: the same job with more steps, and nothing of its run directory.
    goes_on = make_job(tmp_path, "copied", location)
    with RunningJobs(write_jobs(tmp_path, goes_on), tmp_path / "second" / "runs") as run:
        assert run.end(timeout=120.0) == 0, run.output
        resumed = run.folder("copied")
        assert [line["step"] for line in run.metrics("copied")] == [3, 4]
    assert files(resumed / "result") == files(reference / "result")
    assert [step.prompts for step in read_history(resumed)] == [
        step.prompts for step in read_history(reference)
    ]
    assert steps(location, CHECKPOINTS) == [3, 4]
    copy = tmp_path / "copy"
    copy.mkdir()
    asyncio.run(RemoteRun(Bucket(location)).download(f"{RESULTS}/step-00000004-fence-2", copy))
    assert files(copy) == files(resumed / "result")

    # A job whose model is the result at the address, and whose rows are there too.
    rows = (tmp_path / "rows.jsonl").read_bytes()
    asyncio.run(Bucket(location).put("rows/all.jsonl", rows))
    data = {"demonstrations": {"source": {"uri": f"{location}/rows/*.jsonl"}, "format": {"text": {}}}}
    tuned = make_job(tmp_path, "tuned", None, maxSteps=1, policy={"model": {"uri": str(location)}}, data=data)
    with RunningJobs(write_jobs(tmp_path, tuned), tmp_path / "third" / "runs") as run:
        assert run.end(timeout=120.0) == 0, run.output
        [folder] = (run.folder("tuned") / "downloads").iterdir()
    assert files(folder) == files(resumed / "result")


def test_a_job_trains_while_the_store_is_down_and_ends_when_it_is_back(
    proxy: FaultyStorageProxy, location: StorageLocation, tmp_path: Path
) -> None:
    prepared: list[S3Request] = []

    def down_after_preparation(request: S3Request) -> Fault | None:
        if f"{location.path}/fences" in request.target.replace("%2F", "/"):
            prepared.append(request)
        return Fault.REFUSE if prepared else None

    proxy.faults = down_after_preparation
    with RunningJobs(write_jobs(tmp_path, make_job(tmp_path, "copied", location)), tmp_path / "runs") as run:
        run.wait_for_step("copied", 4)
        run.wait_until("the wait for storage", lambda: "waits for storage" in driver_log(run), 120.0)
        proxy.faults = lambda request: None
        assert run.end(timeout=120.0) == 0, run.output
    assert len(proxy.injected) > 0
    assert steps(location, CHECKPOINTS)[-1] == 4
    assert steps(location, RESULTS) == [4]
    log = driver_log(run)
    assert "checkpoints are uploaded later: the storage does not answer" in log
    assert f"the result could not be uploaded: {location}/" in log


def test_a_stop_finishes_the_upload_within_the_grace_period(
    proxy: FaultyStorageProxy, location: StorageLocation, tmp_path: Path
) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(request: S3Request) -> Fault | None:
        if request.method == "PUT" and "/trainer/" in request.target and not released.is_set():
            hangs.set()
            released.wait(_HANG_SECONDS)
        return None

    proxy.faults = hang
    endless: dict[str, Any] = {"maxSteps": 100_000, "lifecycle": {"gracePeriodSeconds": 6.0}}
    job = make_job(tmp_path, "copied", location, **endless)
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_until("an upload that hangs", hangs.is_set, 60.0)
        run.send(signal.SIGINT)
        assert run.end(timeout=60.0) == 130, run.output
        first = local_steps(run.folder("copied"))[-1]
        lines = len(run.metrics("copied"))
        log = driver_log(run)
    assert "stopped before the newest checkpoint was uploaded" in log
    released.set()
    assert steps(location, CHECKPOINTS) == []

    # The next start uploads it, before there is another checkpoint.
    job["spec"]["checkpoint"]["everySteps"] = 100_000
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_until("the upload", lambda: steps(location, CHECKPOINTS) == [first], 60.0)
        # The first run may have done steps after its last checkpoint.
        run.wait_until("a step of this run", lambda: len(run.metrics("copied")) > lines, 60.0)
        run.send(signal.SIGINT)
        assert run.end(timeout=60.0) == 130, run.output
        last = local_steps(run.folder("copied"))[-1]
    assert last > first
    assert steps(location, CHECKPOINTS) == [first, last]


def test_wrong_credentials_end_the_job_at_its_start(
    proxy: FaultyStorageProxy, location: StorageLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with RunningJobs(write_jobs(tmp_path, make_job(tmp_path, "copied", location)), tmp_path / "runs") as run:
        assert run.end(timeout=120.0) == 1, run.output
        assert f"spec.checkpoint.uri: {location}/job.json could not be written: Signature" in " ".join(
            run.output.split()
        )
        assert not (run.folder("copied") / "metrics.jsonl").exists()
