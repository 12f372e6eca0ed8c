"""The run from whose checkpoint a job starts: checked, read and never written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.checkpoints.fence import Fence, acquire_fence
from kubealign_services.checkpoints.history import StepHistory, TrainedStep, history_path, read_history
from kubealign_services.checkpoints.lineage import record_start
from kubealign_services.checkpoints.manifest import CheckpointManifest, describe_shards
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointStore
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.parent_run import check_parent, load_parent_checkpoint
from kubealign_services.roles.driver.state import JobState
from kubealign_services.runtime.process.failures import PermanentFailure
from support.bad_specs import whole_job


def _job(step: int | None = None, **changes: Any) -> AlignmentJob:
    source = {"job": {"name": "old"}} if step is None else {"job": {"name": "old"}, "step": step}
    changed = {"metadata.name": "new", "spec.checkpoint": {"from": source}, **changes}
    return AlignmentJob.model_validate(whole_job("sft", changed))


def _fence(run_dir: Path) -> Fence:
    run_dir.mkdir(exist_ok=True)
    return Fence(run_dir, acquire_fence(run_dir))


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A run of five steps with checkpoints of steps 2 and 4."""
    fence = _fence(tmp_path / "old")
    lineage = record_start(fence, 0)
    store = CheckpointStore(fence, lineage, RetentionPolicy(5))
    history = StepHistory(history_path(fence.run_dir, fence.number))
    for step in range(1, 6):
        history.append(TrainedStep(fence=fence.number, step=step, version=step, prompts=[f"0/{step}"]))
        if step % 2:
            continue
        folder = store.begin(step)
        (folder / "trainer").mkdir()
        (folder / "trainer" / "shard").write_text(f"weights of {step}")
        state = JobState(step=step, unfinished=["0/9"], finished="early stopping")
        store.commit(
            folder,
            CheckpointManifest(
                job="old",
                step=step,
                weight_version=step,
                fence=fence.number,
                shards={"trainer": describe_shards(folder / "trainer")},
                driver_state=state.model_dump(mode="json"),
            ),
        )
    (fence.run_dir / "job.json").write_text(
        AlignmentJob.model_validate(whole_job("sft", {"metadata.name": "old"})).model_dump_json(by_alias=True)
    )
    return fence.run_dir


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("asked", "step"), [(None, 4), (2, 2)])
def test_the_checkpoint_and_its_history_are_taken_over(
    parent: Path, tmp_path: Path, asked: int | None, step: int
) -> None:
    before = _files(parent)
    fence, job = _fence(tmp_path / "new"), _job(asked)
    check_parent(job, parent, fence.run_dir)
    checkpoint = load_parent_checkpoint(job, parent, fence, 10)
    assert (checkpoint.path / "trainer" / "shard").read_text() == f"weights of {step}"
    state = JobState.model_validate(checkpoint.manifest.driver_state)
    assert (state.step, state.unfinished) == (step, ["0/9"])
    # The job decides for itself when to end.
    assert state.finished == ""
    lineage = record_start(fence, step)
    prompts = [line.prompts for line in read_history(fence.run_dir, lineage)]
    assert prompts == [[f"0/{number}"] for number in range(1, step + 1)]
    assert _files(parent) == before
    assert json.loads((fence.run_dir / "parent.json").read_text())["changes"][-1].startswith(
        "spec.checkpoint.from was null, is {"
    )


def test_the_choice_of_the_newest_checkpoint_is_kept(parent: Path, tmp_path: Path) -> None:
    fence, job = _fence(tmp_path / "new"), _job()
    (next((parent / "commits").glob("step-00000004*")) / "trainer" / "shard").write_text("weights of x")
    assert load_parent_checkpoint(job, parent, fence, 10).manifest.step == 2
    (next((parent / "commits").glob("step-00000004*")) / "trainer" / "shard").write_text("weights of 4")
    again = _fence(fence.run_dir)
    assert load_parent_checkpoint(job, parent, again, 10).manifest.step == 2
    # A checkpoint that was taken over is not compared again: the parent may be deleted.
    check_parent(job, tmp_path / "gone", fence.run_dir)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (_job(3), r"spec\.checkpoint\.from\.step: .*old has no checkpoint of step 3; it has those of 2, 4"),
        (
            _job(**{"spec.seed": 7}),
            r"spec\.checkpoint\.from: .* cannot be continued .*: spec\.seed was 1, is 7",
        ),
    ],
)
def test_a_job_that_cannot_continue_is_refused(parent: Path, tmp_path: Path, job: Any, message: str) -> None:
    with pytest.raises(PermanentFailure, match=message):
        check_parent(job, parent, tmp_path / "new")


def test_a_folder_without_a_run_or_a_checkpoint_is_refused(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(PermanentFailure, match=r"spec\.checkpoint\.from: .*gone holds no run: No such file"):
        check_parent(_job(), tmp_path / "gone", tmp_path / "new")
    for folder in (parent / "commits").iterdir():
        folder.rename(tmp_path / folder.name)
    with pytest.raises(
        PermanentFailure, match=r"spec\.checkpoint\.from: .*old has no checkpoint: name another"
    ):
        check_parent(_job(), parent, tmp_path / "new")
    with pytest.raises(UnrecoverableError, match=r"old has no checkpoint"):
        load_parent_checkpoint(_job(), parent, _fence(tmp_path / "new"), 10)


def _remove(parent: Path, step: int) -> None:
    """Do what the parent's retention does, and the removal after it."""
    (folder,) = (parent / "commits").glob(f"step-{step:08d}*")
    shutil.rmtree(folder.rename(folder.with_name(f".removing-fence-1-{folder.name}-x")))


def test_a_checkpoint_that_the_parent_removes_after_the_check_is_continued(
    parent: Path, tmp_path: Path
) -> None:
    run_dir, job = tmp_path / "new", _job(2)
    fence = _fence(run_dir)
    check_parent(job, parent, run_dir)
    _remove(parent, 2)
    # A restart of the preparation.
    check_parent(job, parent, run_dir)
    assert load_parent_checkpoint(job, parent, fence, 10).manifest.step == 2
    # The parent is deleted, and the driver starts again before its first own checkpoint.
    shutil.rmtree(parent)
    checkpoint = load_parent_checkpoint(job, parent, _fence(run_dir), 10)
    assert (checkpoint.path / "trainer" / "shard").read_text() == "weights of 2"


def test_a_parent_deleted_before_its_history_is_taken_over_is_an_error(parent: Path, tmp_path: Path) -> None:
    fence = _fence(tmp_path / "new")
    check_parent(_job(2), parent, fence.run_dir)
    shutil.rmtree(parent)
    with pytest.raises(UnrecoverableError, match=r"spec\.checkpoint\.from: .*old holds no run"):
        load_parent_checkpoint(_job(2), parent, fence, 10)


@pytest.mark.parametrize("step", [None, 4])
def test_a_damaged_checkpoint_is_a_permanent_error(parent: Path, tmp_path: Path, step: int | None) -> None:
    for shard in (parent / "commits").glob("*/trainer/shard"):
        shard.write_text("weights of x")
    with pytest.raises(
        UnrecoverableError, match=r"spec\.checkpoint\.from: .*old: .* corrupt: .*name another step"
    ):
        load_parent_checkpoint(_job(step), parent, _fence(tmp_path / "new"), 10)


def test_a_checkpoint_of_the_last_step_leaves_nothing_to_train(parent: Path, tmp_path: Path) -> None:
    with pytest.raises(UnrecoverableError, match=r"is of step 4, and this job ends after step 4: raise"):
        load_parent_checkpoint(_job(), parent, _fence(tmp_path / "new"), 4)
