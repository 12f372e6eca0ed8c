"""Hard links to the checkpoint of another run: complete or absent, and deleted after the first own one."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from kubealign_services.checkpoints.fence import Fence, acquire_fence
from kubealign_services.checkpoints.lineage import record_start
from kubealign_services.checkpoints.manifest import CheckpointManifest, describe_shards
from kubealign_services.checkpoints.parent_checkpoint import (
    CheckpointRemoved,
    link_checkpoint,
    open_linked_checkpoint,
)
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointStore, StoredCheckpoint


def _commit(run_dir: Path, step: int) -> tuple[CheckpointStore, StoredCheckpoint]:
    run_dir.mkdir(exist_ok=True)
    fence = Fence(run_dir, acquire_fence(run_dir))
    store = CheckpointStore(fence, record_start(fence, 0), RetentionPolicy(1))
    folder = store.begin(step)
    (folder / "trainer").mkdir()
    (folder / "trainer" / "shard").write_text(f"weights of {step}")
    manifest = CheckpointManifest(
        job=run_dir.name,
        step=step,
        weight_version=step,
        fence=fence.number,
        shards={"trainer": describe_shards(folder / "trainer")},
        driver_state={},
    )
    return store, store.commit(folder, manifest)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return _commit(tmp_path / "old", 3)[1].path


def test_the_links_share_the_files_and_stay_after_the_removal(checkpoint: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "new"
    run_dir.mkdir()
    assert open_linked_checkpoint(run_dir) is None
    assert link_checkpoint(checkpoint, run_dir)
    assert (checkpoint / "trainer" / "shard").stat().st_nlink == 2
    shutil.rmtree(checkpoint)
    # A second call finds the links.
    assert link_checkpoint(checkpoint, run_dir)
    reader = open_linked_checkpoint(run_dir)
    assert reader is not None
    linked = reader.at_step(3)
    assert linked is not None
    assert (linked.path / "trainer" / "shard").read_text() == "weights of 3"
    assert reader.at_step(2) is None


def test_the_links_are_deleted_once_the_run_has_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "new"
    run_dir.mkdir()
    assert link_checkpoint(checkpoint, run_dir)
    fence = Fence(run_dir, acquire_fence(run_dir))
    CheckpointStore(fence, record_start(fence, 3), RetentionPolicy(1)).remove_leftovers()
    assert open_linked_checkpoint(run_dir) is not None
    store, _ = _commit(run_dir, 4)
    store.remove_leftovers()
    assert open_linked_checkpoint(run_dir) is None
    assert (checkpoint / "trainer" / "shard").read_text() == "weights of 3"


@pytest.mark.parametrize("after", [0, 1])
def test_a_checkpoint_removed_meanwhile_is_an_error_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    run_dir = tmp_path / "new"
    run_dir.mkdir()
    link, linked = os.link, []

    def link_then_remove(source: Path, target: Path) -> None:
        if len(linked) == after:
            checkpoint.rename(checkpoint.with_name(".removing-x"))
            source = checkpoint.with_name(".removing-x") / source.relative_to(checkpoint) if after else source
        linked.append(target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_then_remove)
    with pytest.raises(CheckpointRemoved, match=r"was removed while the job started.*kubealign pin"):
        link_checkpoint(checkpoint, run_dir)
    assert not list(run_dir.iterdir())


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_a_file_system_without_links_leaves_the_checkpoint_to_the_other_run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    run_dir = tmp_path / "new"
    run_dir.mkdir()

    def refuse(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(source))

    monkeypatch.setattr(os, "link", refuse)
    assert not link_checkpoint(checkpoint, run_dir)
    assert not list(run_dir.iterdir())


def test_the_draft_of_a_killed_process_is_replaced(checkpoint: Path, tmp_path: Path) -> None:
    draft = tmp_path / "new" / ".parent-abc" / "commits" / checkpoint.name
    draft.mkdir(parents=True)
    assert open_linked_checkpoint(tmp_path / "new") is None
    assert link_checkpoint(checkpoint, tmp_path / "new")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["parent"]
