"""Full disks and corrupt checkpoints: earlier checkpoints stay intact and the job resumes from them."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kubealign_services.checkpoints.store import CheckpointReader
from support.running import RunningJobs, left_running
from support.tiny_jobs import online_job, sft_job, write_jobs

pytestmark = pytest.mark.timeout(240)

EVERY = {"everySteps": 1, "keep": 3}
RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, str], None]]:
    """Yield a function that mounts a file system of a given size."""
    with ExitStack() as mounted:

        def mount(folder: Path, size: str) -> None:
            folder.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
            if subprocess.run(command, capture_output=True, check=False).returncode != 0:
                pytest.skip("mounting a small file system takes rights that this user does not have")
            mounted.callback(subprocess.run, ["umount", str(folder)], check=True)

        yield mount


def newest(run_dir: Path) -> int:
    """Return the step of the newest checkpoint, whose checksums are verified."""
    commit = CheckpointReader(run_dir).latest()
    assert commit is not None
    return commit.manifest.step


def test_a_disk_that_is_full_at_a_commit(tmp_path: Path, failed, small_disk) -> None:
    commits = tmp_path / "runs" / "bad" / "commits"
    # A checkpoint takes about 250 KB.
    small_disk(commits, "600k")
    output = failed(sft_job(tmp_path, "bad", checkpoint=EVERY))
    assert "driver: step 3 was not committed: " in output
    assert "No space left on device" in output
    assert "earlier checkpoints are intact" in output
    assert newest(commits.parent) == 2
    assert sorted(path.name for path in commits.iterdir()) == [
        "step-00000001-fence-1",
        "step-00000002-fence-1",
    ]


def test_disk_filled_by_another_process(tmp_path: Path, small_disk) -> None:
    """Check that the job fails when no message or log can be written, and that the same command resumes it
    once the disk has space again."""
    small_disk(tmp_path / "runs", "4m")
    job = online_job(tmp_path, "bad", RLOO, maxSteps=200, checkpoint={"everySteps": 2})
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("bad", 3)
        filler = tmp_path / "runs" / "filler"
        with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert run.end(60) == 1, run.output
        assert "no space left on" in run.output.lower()
        assert "run the same command to resume" in run.output
        assert left_running(tmp_path) == {}
        filler.unlink()
        step = newest(run.folder("bad"))
        run.start()
        run.wait_for_step("bad", step + 1)
        trained = [line["step"] for line in run.history("bad")]
        assert trained == list(range(1, len(trained) + 1)), "no step is missing or there twice"


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
