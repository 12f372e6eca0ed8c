"""Full disks and corrupt checkpoints: earlier checkpoints stay intact and the job resumes from them."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kubealign_services.checkpoints.store import CheckpointReader
from support.running import RunningJobs, left_running
from support.tiny_jobs import online_job, sft_job, write_jobs

pytestmark = pytest.mark.timeout(240)

EVERY = {"everySteps": 1, "keep": 3}
RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


class SmallDisks:
    """File systems of a given size in memory."""

    def __init__(self, mounted: ExitStack) -> None:
        self._mounted = mounted

    def mount(self, folder: Path, size: str) -> None:
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a small file system takes rights that this user does not have")
        # Lazily: a process of a failed test may still have a file open.
        self._mounted.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=True)

    def resize(self, folder: Path, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@pytest.fixture
def small_disks() -> Iterator[SmallDisks]:
    with ExitStack() as mounted:
        yield SmallDisks(mounted)


def newest(run_dir: Path) -> int:
    """Return the step of the newest checkpoint, whose checksums are verified."""
    commit = CheckpointReader(run_dir).latest()
    assert commit is not None
    return commit.manifest.step


def test_a_disk_that_is_full_at_a_commit(tmp_path: Path, small_disks: SmallDisks) -> None:
    """Check that the job waits for room, without a restart, and then saves the checkpoint that it owes."""
    commits = tmp_path / "runs" / "bad" / "commits"
    # A checkpoint takes about 250 KB.
    small_disks.mount(commits, "600k")
    job = sft_job(tmp_path, "bad", checkpoint=EVERY, lifecycle={"maxRestarts": 0})
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        log = run.folder("bad") / "logs" / "driver.log"
        run.wait_until("the full disk", lambda: log.exists() and "waits for storage" in log.read_text(), 120)
        text = log.read_text()
        assert "step 3 was not committed: " in text and "No space left on device" in text
        assert "earlier checkpoints are intact" in text
        assert newest(commits.parent) == 2
        small_disks.resize(commits, "2m")
        assert run.end(120) == 0, run.output
        assert [path.name for path in CheckpointReader(commits.parent).paths()] == [
            "step-00000002-fence-1",
            *(path.name for path in commits.glob("step-00000003-fence-*")),
            *(path.name for path in commits.glob("step-00000004-fence-*")),
        ]
        assert [line["step"] for line in run.history("bad")] == [1, 2, 3, 4]
        assert "trainer and critic agree on the state: continuing without a rollback" in log.read_text()
        events = (run.folder("bad") / "events.jsonl").read_text()
        assert "Restarted" not in events


def test_disk_filled_by_another_process(tmp_path: Path, small_disks: SmallDisks) -> None:
    """Check that the job waits when no message or log can be written, and goes on once there is room."""
    small_disks.mount(tmp_path / "runs", "4m")
    job = online_job(tmp_path, "bad", RLOO, maxSteps=200, checkpoint={"everySteps": 2})
    job["spec"]["lifecycle"] = {"maxRestarts": 0}
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("bad", 3)
        filler = tmp_path / "runs" / "filler"
        with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        run.wait_until("the report of the full disk", lambda: "no space left on the disk" in run.output, 60)
        step = newest(run.folder("bad"))
        filler.unlink()
        run.wait_for_step("bad", max(step, *run.steps("bad")) + 4)
        run.wait_until("the report of room", lambda: "there is room again on the disk" in run.output, 60)
        run.send(signal.SIGINT)
        assert run.end(60) == 130, run.output
        assert left_running(tmp_path) == {}
        trained = [line["step"] for line in run.history("bad")]
        assert trained == list(range(1, len(trained) + 1)), "no step is missing or there twice"
        prompts = [prompt for line in run.history("bad") for prompt in line["prompts"]]
        assert len(prompts) == len(set(prompts))


def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_serves(tmp_path: Path) -> None:
    with RunningJobs(
        write_jobs(tmp_path, sft_job(tmp_path, "bad", checkpoint=EVERY)), tmp_path / "runs"
    ) as run:
        assert run.end(120) == 0, run.output
        last = run.folder("bad") / "commits" / "step-00000004-fence-1"
        shard = next((last / "trainer").glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        write_jobs(tmp_path, sft_job(tmp_path, "bad", checkpoint=EVERY, maxSteps=5))

        run.start()
        assert run.end(120) == 0, run.output
        log = (run.folder("bad") / "logs" / "driver.log").read_text()
        assert f"checkpoint {last.name} is corrupt: {shard} has digest " in log
        assert "the job goes on from step-00000003-fence-1" in log
        assert newest(run.folder("bad")) == 5
        assert [line["step"] for line in run.history("bad")] == [1, 2, 3, 4, 5]
