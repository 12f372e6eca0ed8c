"""Copies of checkpoints in a real S3 server: uploads beside training, takeovers, and restoration."""

import asyncio
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kubealign.checkpoint_pins import PINS_FOLDER, pinned_steps
from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import StorageRefused
from kubealign.object_storage.location import StorageLocation
from kubealign.replay.plan import ReplayPlan
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.lifecycle import KeepBest
from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.checkpoints.history import StepHistory, TrainedStep, history_path, read_history
from kubealign_services.checkpoints.lineage import read_lineage, record_start
from kubealign_services.checkpoints.manifest import CheckpointManifest, describe_shards
from kubealign_services.checkpoints.remote import uploader as uploader_module
from kubealign_services.checkpoints.remote.remote_run import CHECKPOINTS, RESULTS, AddressTaken, RemoteRun
from kubealign_services.checkpoints.remote.resume import resume_run
from kubealign_services.checkpoints.remote.uploader import CheckpointUploader
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import (
    CheckpointCorrupted,
    CheckpointReader,
    CheckpointStore,
    StoredCheckpoint,
)
from kubealign_services.roles.driver.checkpoint_upload import open_remote_run, restore_run_directory
from kubealign_services.runtime.rpc.errors import StorageFull
from support.bad_specs import whole_job
from support.s3_server import Fault, FaultyStorageProxy, S3Request, S3Server

pytestmark = pytest.mark.timeout(120)

_DEADLINE_SECONDS = 60


class Run:
    """A run directory with the driver of its newest fence, which writes checkpoints of a few bytes."""

    def __init__(
        self, folder: Path, uploader: CheckpointUploader, keep: int = 2, best: KeepBest | None = None
    ) -> None:
        self.folder = folder
        self.uploader = uploader
        self._retention = RetentionPolicy(keep, best)

    async def begin(self, claims: bool = True) -> int:
        """Begin an attempt: take a fence, claim it and continue the newest checkpoint. Return its step."""
        self.fence = Fence(self.folder, acquire_fence(self.folder))
        if claims:
            await self.uploader.begin_attempt(self.fence.number)
        step = CheckpointReader(self.folder, read_lineage(self.folder, self.fence.number)).latest_step() or 0
        self._history = StepHistory(history_path(self.folder, self.fence.number))
        self._store = CheckpointStore(
            self.fence, record_start(self.fence, step), self._retention, self.uploader.pinned
        )
        return step

    def commit(self, step: int, round_file: str = "", exact: float | None = None) -> StoredCheckpoint:
        """Train a step and commit its checkpoint.

        Args:
            round_file: File of the rows of the current round; empty: the algorithm has no rounds.
            exact: Value of val/exact at this step; None: it was not validated.
        """
        number = self.fence.number
        self._history.append(TrainedStep(fence=number, step=step, version=step, prompts=[f"prompt-{step}"]))
        folder = self._store.begin(step)
        (folder / "trainer").mkdir()
        (folder / "trainer" / "shard").write_text(f"weights of step {step}")
        shards = {"trainer": describe_shards(folder / "trainer")}
        manifest = CheckpointManifest(
            job="sft",
            step=step,
            weight_version=step,
            fence=number,
            shards=shards,
            driver_state={
                "step": step,
                "round": {"file": round_file},
                "validation": {"val/exact": exact},
                "validated_step": None if exact is None else step,
            },
        )
        return self._store.commit(folder, manifest)

    async def commit_and_upload(self, *steps: int) -> None:
        """Commit steps, each uploaded before the next one."""
        for step in steps:
            await self.uploader.enqueue(await asyncio.to_thread(self.commit, step))
            await uploaded(self.uploader)

    def local_steps(self) -> list[int]:
        folders = [path.name for path in (self.folder / "commits").glob("step-*")]
        return sorted(int(name.split("-")[1]) for name in folders)


async def uploaded(uploader: CheckpointUploader) -> None:
    await asyncio.wait_for(uploader.wait_until_uploaded(), _DEADLINE_SECONDS)


@pytest.fixture
def remote(proxy: FaultyStorageProxy, location: StorageLocation) -> RemoteRun:
    return RemoteRun(Bucket(location))


@pytest.fixture
def job() -> AlignmentJob:
    return make_job()


def make_job(name: str = "sft", **spec: Any) -> AlignmentJob:
    document = whole_job(
        "sft", {"metadata.name": name, **{f"spec.{key}": value for key, value in spec.items()}}
    )
    return AlignmentJob.model_validate(document)


def folder(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


def set_at_failure(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Return an event that is set when the uploader reports a failed upload."""
    event = asyncio.Event()
    monkeypatch.setattr(uploader_module.log, "warning", lambda *arguments, **options: event.set())
    return event


async def remote_steps(remote: RemoteRun) -> list[int]:
    return [name.step for name in await remote.published(CHECKPOINTS)]


def files(run_dir: Path) -> dict[str, bytes]:
    """Return the files that decide on the state of a run, without the numbers of its fences."""
    parts = [*run_dir.glob("commits/step-*/**/*"), *run_dir.glob("fences/*.json"), *run_dir.glob("history/*")]
    return {path.relative_to(run_dir).as_posix(): path.read_bytes() for path in parts if path.is_file()}


async def test_an_empty_run_directory_is_restored(
    remote: RemoteRun, job: AlignmentJob, tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    assert await resume_run(remote, job, first) is None
    async with CheckpointUploader(remote, first, RetentionPolicy(1)) as uploader:
        run = Run(first, uploader, keep=1)
        await run.begin()
        await run.commit_and_upload(1, 2)
        # Restarts of the driver: a lineage of two fences, then a fence without a checkpoint.
        assert await run.begin() == 2
        await run.commit_and_upload(3)
        await run.begin()
        assert uploader.state.to_metrics()["checkpoint/uploaded_step"] == 3.0
        assert uploader.state.failures == 0
        assert not list(first.glob(".uploading-*"))
    assert await resume_run(remote, job, second) == 3
    expected = {name: data for name, data in files(first).items() if name != "fences/3.json"}
    assert files(second) == expected
    newest = CheckpointReader(second).latest()
    assert newest is not None and newest.manifest.step == 3
    assert [line.prompts for line in read_history(second)] == [["prompt-1"], ["prompt-2"], ["prompt-3"]]
    # All three fences have been claimed by the lost run directory.
    assert acquire_fence(second) == 4
    # The run directory has a checkpoint now, and is not restored again.
    assert await resume_run(remote, job, folder(tmp_path, "third")) == 3


async def test_the_rows_of_the_round_and_the_parent_are_restored(
    remote: RemoteRun, job: AlignmentJob, tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    restored = {"rounds/round-2": b"rows", "parent.json": b"{}", "history.jsonl": b""}
    await asyncio.to_thread((first / "rounds").mkdir)
    for name, data in {**restored, "rounds/round-1": b"of an earlier round"}.items():
        await asyncio.to_thread((first / name).write_bytes, data)
    async with CheckpointUploader(remote, first, RetentionPolicy(1)) as uploader:
        run = Run(first, uploader)
        await run.begin()
        await uploader.enqueue(await asyncio.to_thread(run.commit, 1, "round-2"))
        await uploaded(uploader)
    assert await resume_run(remote, job, second) == 1
    assert {name: (second / name).read_bytes() for name in restored} == restored
    assert [path.name for path in (second / "rounds").iterdir()] == ["round-2"]


async def test_an_interrupted_restoration_is_repeated(
    remote: RemoteRun, job: AlignmentJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    async with CheckpointUploader(remote, first, RetentionPolicy(2)) as uploader:
        run = Run(first, uploader)
        await run.begin()
        await run.commit_and_upload(1)
    expected = files(first)

    def crash(*arguments: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        with pytest.raises(OSError, match="Input/output error"):
            await resume_run(remote, job, second)
    assert CheckpointReader(second).latest_step() is None
    # Files of a driver without a checkpoint lead nowhere.
    (second / "fences" / "2.json").write_text('{"fence": 2, "parent": 0, "step": 0}')
    assert await resume_run(remote, job, second) == 1
    assert files(second) == expected


async def test_training_goes_on_while_the_store_is_down(
    proxy: FaultyStorageProxy,
    remote: RemoteRun,
    job: AlignmentJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_dir = folder(tmp_path, "run")
    async with CheckpointUploader(remote, run_dir, RetentionPolicy(2)) as uploader:
        run = Run(run_dir, uploader, keep=1)
        await run.begin()
        proxy.faults = lambda request: Fault.REFUSE
        failure = set_at_failure(monkeypatch)
        first = await asyncio.to_thread(run.commit, 1)
        await uploader.enqueue(first)
        await asyncio.wait_for(failure.wait(), _DEADLINE_SECONDS)
        assert not uploader.is_idle
        proxy.faults = lambda request: None
        await uploaded(uploader)
        assert uploader.state.step == 1

        proxy.faults = lambda request: Fault.REFUSE
        for step in (2, 3):
            await uploader.enqueue(await asyncio.to_thread(run.commit, step))
        assert 3 in run.local_steps() and not uploader.is_idle
        proxy.faults = lambda request: None
        await uploaded(uploader)
        assert (await remote_steps(remote))[-1] == 3
        assert uploader.state.step == 3 and uploader.state.failures >= 1
        await run.commit_and_upload(4)
        assert run.local_steps() == [4] and uploader.pinned == set()


async def test_a_checkpoint_stays_while_it_is_uploaded(
    proxy: FaultyStorageProxy, remote: RemoteRun, tmp_path: Path
) -> None:
    run_dir = folder(tmp_path, "run")
    async with CheckpointUploader(remote, run_dir, RetentionPolicy(5)) as uploader:
        run = Run(run_dir, uploader, keep=1)
        await run.begin()
        reached, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait(request: S3Request) -> Fault | None:
            if "shard" in request.target:
                loop.call_soon_threadsafe(reached.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(_DEADLINE_SECONDS)
            return None

        proxy.faults = wait
        await uploader.enqueue(await asyncio.to_thread(run.commit, 1))
        await asyncio.wait_for(reached.wait(), _DEADLINE_SECONDS)
        await asyncio.to_thread(run.commit, 2)
        assert run.local_steps() == [1, 2]
        go_on.set()
        await uploaded(uploader)
        await asyncio.to_thread(run.commit, 3)
        assert run.local_steps() == [3]
        assert await remote_steps(remote) == [1]


async def test_old_copies_and_remnants_are_deleted(remote: RemoteRun, s3: S3Server, tmp_path: Path) -> None:
    run_dir = folder(tmp_path, "run")
    async with CheckpointUploader(remote, run_dir, RetentionPolicy(2)) as uploader:
        run = Run(run_dir, uploader)
        await run.begin()
        stored = s3.objects.joinpath(*remote.uri.split("/")[3:]) / CHECKPOINTS
        remnant = stored / "step-00000007-fence-1" / "checkpoint"
        remnant.mkdir(parents=True)
        (remnant / "shard").write_text("of an upload that was cut off")
        newer = stored / "step-00000001-fence-9" / "checkpoint"
        newer.mkdir(parents=True)
        (newer / "shard").write_text("of a driver that has just taken over")
        await run.commit_and_upload(1, 2, 3)
        assert await remote_steps(remote) == [2, 3]
        assert sorted(path.name for path in stored.iterdir() if any(path.rglob("*"))) == [
            "step-00000001-fence-9",
            "step-00000002-fence-1",
            "step-00000003-fence-1",
        ]
        for step in (3, 4):
            (tmp_path / "result").mkdir(exist_ok=True)
            (tmp_path / "result" / "model").write_text(f"weights of step {step}")
            await uploader.publish_result(tmp_path / "result", step, {"job": "sft"})
        assert [name.step for name in await remote.published(RESULTS)] == [4]


async def test_copies_of_the_best_checkpoints_stay(remote: RemoteRun, s3: S3Server, tmp_path: Path) -> None:
    best = KeepBest(metric="val/exact")
    values = {1: 0.1, 2: 0.5, 3: 0.3, 4: None, 5: 0.5}
    async with CheckpointUploader(remote, tmp_path, RetentionPolicy(1, best)) as uploader:
        run = Run(tmp_path, uploader, keep=1, best=best)
        await run.begin()
        for step, exact in values.items():
            await uploader.enqueue(await asyncio.to_thread(run.commit, step, exact=exact))
            await uploaded(uploader)
    assert await remote_steps(remote) == [2, 5]
    assert run.local_steps() == [2, 5]


async def test_copies_of_pinned_checkpoints_stay(
    remote: RemoteRun, s3: S3Server, job: AlignmentJob, tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    assert await resume_run(remote, job, first) is None
    async with CheckpointUploader(remote, first, RetentionPolicy(1)) as uploader:
        run = Run(first, uploader, keep=1)
        await run.begin()
        await run.commit_and_upload(1)
        (first / PINS_FOLDER).mkdir()
        (first / PINS_FOLDER / "1").write_text("\n")
        await run.commit_and_upload(2, 3)
        assert run.local_steps() == await remote_steps(remote) == [1, 3]
    # The pins are restored with the run directory, so that they hold after the loss of a volume.
    assert await resume_run(remote, job, second) == 3
    assert pinned_steps(second) == {1}
    async with CheckpointUploader(remote, second, RetentionPolicy(1)) as uploader:
        run = Run(second, uploader, keep=1)
        await run.begin()
        await run.commit_and_upload(4)
        assert await remote_steps(remote) == [1, 4]
        (second / PINS_FOLDER / "1").unlink()
        await run.commit_and_upload(5)
        assert await remote_steps(remote) == [5]


async def test_the_best_checkpoint_is_copied_although_a_newer_one_waits(
    proxy: FaultyStorageProxy, remote: RemoteRun, tmp_path: Path
) -> None:
    best = KeepBest(metric="val/exact")
    async with CheckpointUploader(remote, tmp_path, RetentionPolicy(1, best)) as uploader:
        run = Run(tmp_path, uploader, keep=1, best=best)
        await run.begin()
        proxy.faults = lambda request: Fault.SLOW_DOWN if request.method == "PUT" else None
        for step, exact in {1: 0.1, 2: 0.5, 3: 0.3, 4: None, 5: None}.items():
            await uploader.enqueue(await asyncio.to_thread(run.commit, step, exact=exact))
        proxy.faults = lambda request: None
        await uploaded(uploader)
        assert not uploader.pinned
    assert await remote_steps(remote) == [2, 5]


async def test_old_copies_that_cannot_be_deleted_stop_no_upload(
    proxy: FaultyStorageProxy, remote: RemoteRun, tmp_path: Path
) -> None:
    run_dir = folder(tmp_path, "run")
    async with CheckpointUploader(remote, run_dir, RetentionPolicy(1)) as uploader:
        run = Run(run_dir, uploader)
        await run.begin()
        proxy.faults = lambda request: Fault.REFUSE if "?delete" in request.target else None
        await run.commit_and_upload(1, 2)
        assert proxy.injected
        assert (uploader.state.step, uploader.state.failures) == (2, 0)
        assert await remote_steps(remote) == [1, 2]
        proxy.faults = lambda request: None
        await run.commit_and_upload(3)
        assert await remote_steps(remote) == [3]


async def test_a_replaced_driver_publishes_nothing(
    remote: RemoteRun, job: AlignmentJob, tmp_path: Path
) -> None:
    first, second = folder(tmp_path, "first"), folder(tmp_path, "second")
    async with (
        CheckpointUploader(remote, first, RetentionPolicy(2)) as old,
        CheckpointUploader(remote, second, RetentionPolicy(2)) as new,
    ):
        replaced = Run(first, old)
        await replaced.begin()
        await replaced.commit_and_upload(1, 2)
        assert await resume_run(remote, job, second) == 2
        successor = Run(second, new)
        assert await successor.begin() == 2
        await successor.commit_and_upload(3)
        watch = asyncio.create_task(old.wait_until_replaced())
        await old.enqueue(await asyncio.to_thread(replaced.commit, 9))
        with pytest.raises(
            AddressTaken, match=f"another run directory has continued the job at {remote.uri}, with fence 2"
        ):
            await uploaded(old)
        with pytest.raises(AddressTaken):
            await watch
        with pytest.raises(AddressTaken):
            await old.publish_result(first / "fences", 9, {})
        assert await remote_steps(remote) == [2, 3]
        # The run directory that was left behind is refused, and not overwritten.
        with pytest.raises(
            AddressTaken, match=r"with fence 2, and .*first has a checkpoint of step 9: delete"
        ):
            await resume_run(remote, job, first)
        assert await resume_run(remote, job, second) is None


async def test_a_fence_is_claimed_by_one_of_two_run_directories(
    proxy: FaultyStorageProxy, remote: RemoteRun, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remote.claim(4, "first")
    with pytest.raises(AddressTaken, match="with fence 4 after 4"):
        await remote.claim(4, "second")
    await remote.claim(4, "first")
    with pytest.raises(AddressTaken, match="with fence 4 after 3"):
        await remote.claim(3, "second")
    lost = [Fault.LOSE_ANSWER]
    proxy.faults = lambda request: lost.pop() if request.method == "PUT" and lost else None
    await remote.claim(5, "first")
    assert len(proxy.injected) == 1
    with pytest.raises(
        StaleFence, match=f"fence 4 has been replaced by 5: another driver writes {remote.uri}"
    ):
        await remote.claim(4, "first")
    # Another driver claims the fence after the second has seen that it is free.
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.environment()["AWS_ENDPOINT_URL"])
    direct = RemoteRun(Bucket(StorageLocation.parse(remote.uri)))

    def overtake(request: S3Request) -> Fault | None:
        if request.method == "PUT":
            with ThreadPoolExecutor() as threads:
                threads.submit(asyncio.run, direct.claim(6, "first")).result(_DEADLINE_SECONDS)
        return None

    proxy.faults = overtake
    with pytest.raises(AddressTaken, match="with fence 6 after 6"):
        await remote.claim(6, "second")


async def test_a_successor_with_a_lower_step_is_continued(
    remote: RemoteRun, job: AlignmentJob, tmp_path: Path
) -> None:
    run_dir = folder(tmp_path, "run")
    async with CheckpointUploader(remote, run_dir, RetentionPolicy(5)) as uploader:
        run = Run(run_dir, uploader)
        await run.begin()
        await run.commit_and_upload(1)
        stale = await asyncio.to_thread(run.commit, 7)
        await uploader.enqueue(stale)
        await uploaded(uploader)
        # A rollback: the next driver continues step 1, as if step 7 had been committed after its start.
        stale.path.rename(tmp_path / "withdrawn")
        assert await run.begin() == 1
        await run.commit_and_upload(2)
    assert await resume_run(remote, job, folder(tmp_path, "second")) == 2


async def test_a_damaged_copy_is_skipped_and_named(
    remote: RemoteRun, s3: S3Server, job: AlignmentJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir = folder(tmp_path, "run")
    async with CheckpointUploader(remote, run_dir, RetentionPolicy(2)) as uploader:
        run = Run(run_dir, uploader)
        await run.begin()
        await run.commit_and_upload(1, 2)
    shards = sorted(s3.objects.joinpath(*remote.uri.split("/")[3:]).rglob("shard"))
    shards[1].write_bytes(shards[1].read_bytes()[:5])
    second = folder(tmp_path, "second")
    assert await resume_run(remote, job, second) == 1
    assert "step-00000002-fence-1 is corrupt" in caplog.text
    assert "trainer/shard has 5 bytes, the manifest says 17" in caplog.text
    assert not list(second.glob(".restoring-*"))
    shards[0].unlink()
    with pytest.raises(CheckpointCorrupted, match=r"no checkpoint at .* is intact: .*trainer/shard"):
        await resume_run(remote, job, folder(tmp_path, "third"))


async def test_the_address_of_another_job_is_refused(
    remote: RemoteRun, job: AlignmentJob, tmp_path: Path
) -> None:
    assert await resume_run(remote, job, tmp_path) is None
    with pytest.raises(AddressTaken, match=f"{remote.uri} belongs to the job sft, not to other"):
        await resume_run(remote, make_job("other"), tmp_path)
    with pytest.raises(
        AddressTaken,
        match=r"another job sft: spec\.seed was 1, is 2 \(the order of .*\)\. Make these fields equal",
    ):
        await resume_run(remote, make_job(seed=2), tmp_path)
    assert await resume_run(remote, make_job(maxSteps=9), tmp_path) is None


async def test_wrong_credentials_are_refused_at_the_start(
    remote: RemoteRun, location: StorageLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    async with CheckpointUploader(RemoteRun(Bucket(location)), tmp_path, RetentionPolicy(1)) as uploader:
        with pytest.raises(StorageRefused, match="SignatureDoesNotMatch"):
            await uploader.begin_attempt(1)


async def test_a_run_directory_with_a_checkpoint_needs_no_answer(
    proxy: FaultyStorageProxy, remote: RemoteRun, tmp_path: Path
) -> None:
    copied = make_job(checkpoint={"uri": remote.uri})
    proxy.faults = lambda request: Fault.REFUSE
    with pytest.raises(StorageFull, match=rf"spec\.checkpoint\.uri: {remote.uri}/job\.json could not"):
        await restore_run_directory(copied, tmp_path)
    async with CheckpointUploader(remote, tmp_path, RetentionPolicy(1)) as uploader:
        run = Run(tmp_path, uploader)
        await run.begin(claims=False)
        await asyncio.to_thread(run.commit, 1)
        await restore_run_directory(copied, tmp_path)


async def test_a_replay_has_no_copies(proxy: FaultyStorageProxy, remote: RemoteRun, tmp_path: Path) -> None:
    copied = make_job(checkpoint={"uri": remote.uri})
    assert open_remote_run(copied, tmp_path) is not None
    ReplayPlan(run=tmp_path / "recorded", first_step=1, last_step=2).write(tmp_path)
    assert open_remote_run(copied, tmp_path) is None
