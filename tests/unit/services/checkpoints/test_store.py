"""Checkpoint store: checkpoints are complete or absent, whatever happens in between."""

import fcntl
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.checkpoint_pins import PINS_FOLDER
from kubealign.spec.sections.lifecycle import KeepBest
from kubealign_services.checkpoints import store as store_module
from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.checkpoints.lineage import record_start
from kubealign_services.checkpoints.manifest import CheckpointManifest, ShardFile, describe_shards
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import (
    MANIFEST,
    CheckpointCorrupted,
    CheckpointFailed,
    CheckpointReader,
    CheckpointStore,
)

pytestmark = pytest.mark.timeout(60)


def open_store(
    run_dir: Path, keep: int, fence: int = 1, step: int = 0, best: KeepBest | None = None
) -> CheckpointStore:
    """Return the store of a driver that continues from `step`."""
    start = Fence(run_dir, fence)
    return CheckpointStore(start, record_start(start, step), RetentionPolicy(keep, best))


def names(run_dir: Path) -> list[str]:
    return [path.name for path in CheckpointReader(run_dir).paths()]


def write_shards(path: Path, step: int) -> dict[str, list[ShardFile]]:
    for role in ("trainer", "critic"):
        (path / role).mkdir()
        (path / role / "rank-0.safetensors").write_bytes(f"{role} at {step}".encode() * 100)
        (path / role / "rank-0.json").write_text(f'{{"step": {step}}}')
    return {role: describe_shards(path / role) for role in ("trainer", "critic")}


def commit(store: CheckpointStore, step: int, **state: Any) -> Path:
    path = store.begin(step)
    manifest = CheckpointManifest(
        job="sums",
        step=step,
        weight_version=step,
        fence=1,
        shards=write_shards(path, step),
        driver_state={"step": step, **state},
    )
    return store.commit(path, manifest).path


def test_checkpoint_round_trip(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep=2)
    assert store.reader.latest() is None
    path = commit(store, 20, unfinished=["0:3", "0:4"], kl=math.inf, gap=math.nan)
    newest = store.reader.latest()
    assert newest is not None
    assert newest.path == path == tmp_path / "commits" / "step-00000020-fence-1"
    assert newest.manifest.driver_state["unfinished"] == ["0:3", "0:4"]
    assert newest.manifest.driver_state["kl"] == math.inf
    gap = newest.manifest.driver_state["gap"]
    assert isinstance(gap, float) and math.isnan(gap)
    shards = newest.manifest.shards["trainer"]
    assert [shard.name for shard in shards] == [
        "rank-0.json",
        "rank-0.safetensors",
    ]
    # "trainer at 20" has 13 characters, a hundred times.
    assert shards[1].size_bytes == 1300


def test_newest_steps_are_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep=2)
    for step in (5, 10, 100_000_000):
        commit(store, step)
    assert names(tmp_path) == ["step-00000010-fence-1", "step-100000000-fence-1"]


def validated(step: int, exact: float) -> dict[str, Any]:
    return {"validation": {"val/exact": exact}, "validated_step": step}


def test_best_steps_are_kept_beside_the_newest(tmp_path: Path) -> None:
    best = KeepBest(metric="val/exact", count=2)
    store = open_store(tmp_path, keep=1, best=best)
    for step, exact in ((1, 0.2), (2, 0.6), (3, 0.4), (4, 0.6)):
        assert store.is_among_best({"step": step, **validated(step, exact)})
        commit(store, step, **validated(step, exact))
    commit(store, 5)
    assert [int(name.split("-")[1]) for name in names(tmp_path)] == [2, 4, 5]
    # A driver that starts again reads the values from the manifests.
    again = open_store(tmp_path, keep=1, fence=2, step=5, best=best)
    assert not again.is_among_best({"step": 6, **validated(6, 0.6)})
    assert again.is_among_best({"step": 6, **validated(6, 0.7)})
    commit(again, 6, **validated(6, 0.7))
    commit(again, 7)
    assert [int(name.split("-")[1]) for name in names(tmp_path)] == [2, 6, 7]


def test_values_of_another_lineage_do_not_count(tmp_path: Path) -> None:
    best = KeepBest(metric="val/exact")
    store = open_store(tmp_path, keep=1, best=best)
    commit(store, 2, **validated(2, 0.1))
    commit(store, 4, **validated(4, 0.9))
    again = open_store(tmp_path, keep=1, fence=2, step=2, best=best)
    assert again.is_among_best({"step": 4, **validated(4, 0.2)})


def test_repeated_commit_of_a_step_is_newer(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep=3)
    for attempt in range(11):
        commit(store, 7, attempt=attempt)
    assert names(tmp_path) == [
        "step-00000007-9-fence-1",
        "step-00000007-10-fence-1",
        "step-00000007-11-fence-1",
    ]
    newest = store.reader.latest()
    assert newest is not None
    assert newest.manifest.driver_state["attempt"] == 10


def test_remnants_of_a_crash_are_removed(tmp_path: Path) -> None:
    stale = open_store(tmp_path, keep=1).begin(3)
    write_shards(stale, 3)
    store = open_store(tmp_path, keep=1, fence=2)
    assert store.reader.latest() is None
    fresh = store.begin(3)
    store.remove_leftovers()
    assert list(fresh.parent.iterdir()) == [fresh]
    store.discard(fresh)
    assert list(fresh.parent.iterdir()) == []


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_shard_of_another_size_is_not_committed(tmp_path: Path, harm: str) -> None:
    store = open_store(tmp_path, keep=2)
    commit(store, 1)
    path = store.begin(2)
    manifest = CheckpointManifest(
        job="sums", step=2, weight_version=2, fence=1, shards=write_shards(path, 2), driver_state={}
    )
    file = path / "critic" / "rank-0.safetensors"
    file.unlink() if harm == "missing" else file.write_bytes(b"x")
    with pytest.raises(CheckpointFailed, match=r"step 2 was not committed.*rank-0\.safetensors.*intact"):
        store.commit(path, manifest)
    assert not path.exists()
    newest = store.reader.latest()
    assert newest is not None
    assert newest.manifest.step == 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda path: flip(path / "trainer/rank-0.safetensors"), r"trainer/rank-0\.safetensors has digest"),
        (lambda path: os.truncate(path / "critic/rank-0.json", 3), r"critic/rank-0\.json has 3 bytes"),
        (lambda path: (path / "critic/rank-0.json").unlink(), r"critic/rank-0\.json cannot be read"),
        (lambda path: (path / MANIFEST).unlink(), r"manifest\.json cannot be read"),
        (lambda path: os.truncate(path / MANIFEST, 40), r"manifest\.json is not a manifest"),
        (lambda path: edit(path / MANIFEST, '"format": 1', '"format": 2'), r"is not a manifest \(format"),
        (lambda path: edit(path / MANIFEST, "rank-0.json", "../../x"), r"must be a path inside the folder"),
    ],
)
def test_corrupt_newest_checkpoint_is_skipped_and_named(
    tmp_path: Path, harm: Callable[[Path], object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path, keep=2)
    older = commit(store, 1)
    path = commit(store, 2)
    harm(path)
    newest = store.reader.latest()
    assert newest is not None
    assert newest.path == older
    [record] = caplog.records
    assert re.search(rf"checkpoint step-00000002-fence-1 is corrupt: .*{words}", record.getMessage())
    assert "goes on from step-00000001-fence-1" in record.getMessage()
    harm(older)
    with pytest.raises(CheckpointCorrupted, match=words) as caught:
        store.reader.latest()
    assert f"delete the folder {tmp_path / 'commits'} to start again" in str(caught.value)


def test_corrupt_checkpoint_is_replaced_by_the_next_of_its_step(tmp_path: Path) -> None:
    first = open_store(tmp_path, keep=2)
    commit(first, 1)
    corrupt = commit(first, 2)
    flip(corrupt / "trainer/rank-0.safetensors")
    second = open_store(tmp_path, keep=2, fence=2, step=1)
    assert names(tmp_path) == ["step-00000001-fence-1"]
    commit(second, 2)
    assert names(tmp_path) == ["step-00000001-fence-1", "step-00000002-fence-2"]
    second.remove_leftovers()
    assert not corrupt.exists()


def test_checkpoints_of_an_older_release_are_continued(tmp_path: Path) -> None:
    """Check a run whose folders have no fence in their names, with a step that was committed twice."""
    store = open_store(tmp_path, keep=3)
    for path in [commit(store, step) for step in (1, 2, 2)]:
        path.rename(path.with_name(path.name.removesuffix("-fence-1")))
    shutil.rmtree(tmp_path / "fences")
    assert names(tmp_path) == ["step-00000001", "step-00000002", "step-00000002-2"]
    store = open_store(tmp_path, keep=3, fence=4, step=2)
    commit(store, 3)
    assert names(tmp_path) == ["step-00000002", "step-00000002-2", "step-00000003-fence-4"]


def test_replaced_driver_writes_and_removes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        acquire_fence(tmp_path)
    old, new = Fence(tmp_path, 1), Fence(tmp_path, 2)
    store = CheckpointStore(new, record_start(new, 0), RetentionPolicy(2))
    commit(store, 60)
    successors = store.begin(70)
    replaced = CheckpointStore(old, store.reader._lineage, RetentionPolicy(1))
    with pytest.raises(StaleFence, match="fence 1 has been replaced by 2"):
        replaced.begin(80)
    replaced.remove_leftovers()
    assert successors.exists()
    assert names(tmp_path) == ["step-00000060-fence-2"]


def test_new_folder_of_checkpoints_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(store_module, "fsync_path", synced.append)
    open_store(tmp_path, keep=1).begin(1)
    assert synced == [tmp_path]


class Crash(BaseException):
    """The process has died: no further code of it runs."""


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(survived=st.integers(0, 80), keep=st.integers(1, 2))
def test_crash_anywhere_leaves_a_complete_checkpoint(survived: int, keep: int) -> None:
    """Every file operation of the second commit is counted; the process dies after `survived` of them."""
    counted = ("open", "write", "fsync", "rename", "unlink", "rmdir", "mkdir")
    done = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done == survived:
                raise Crash
            done += 1
            return call(*arguments, **options)

        return run

    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder), keep)
        commit(store, 1)
        commit(store, 2)
        crashed = False
        with pytest.MonkeyPatch.context() as patch:
            for name in counted:
                patch.setattr(os, name, dying(getattr(os, name)))
            try:
                commit(store, 3)
                store.remove_leftovers()
            except Crash:
                crashed = True
        newest = CheckpointReader(Path(folder)).latest()
        assert newest is not None
        assert newest.manifest.step in ((2, 3) if crashed else (3,))
        for path in store.reader.paths():
            store_module._verify(path)
        # The next driver's commit goes through, and nothing of the crash is left.
        store = open_store(Path(folder), keep, fence=2, step=newest.manifest.step)
        commit(store, 4)
        store.remove_leftovers()
        assert {path.name for path in (Path(folder) / "commits").iterdir()} == {
            path.name for path in store.reader.paths()
        }
        assert len(store.reader.paths()) <= keep
        for path in store.reader.paths():
            store_module._verify(path)


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep is 0"):
        open_store(tmp_path, keep=0)


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(tmp_path: Path) -> None:
    store = open_store(tmp_path, keep=1)
    commit(store, 1)
    pin = tmp_path / PINS_FOLDER / "1"
    pin.parent.mkdir()
    pin.touch()
    commit(store, 2)
    commit(store, 3)
    assert [int(name.split("-")[1]) for name in names(tmp_path)] == [1, 3]
    # A later driver that does not continue the pinned checkpoint leaves it alone too.
    later = open_store(tmp_path, keep=1, fence=2)
    commit(later, 1)
    commit(later, 2)
    checkpoints = {path.name for path in (tmp_path / "commits").glob("step-*")}
    assert checkpoints == {"step-00000001-fence-1", "step-00000001-fence-2", "step-00000002-fence-2"}
    pin.unlink()
    commit(later, 3)
    assert [path.name for path in (tmp_path / "commits").glob("step-*")] == ["step-00000003-fence-2"]


def test_checkpoints_of_multiples_stay(tmp_path: Path) -> None:
    fence = Fence(tmp_path, 1)
    store = CheckpointStore(fence, record_start(fence, 0), RetentionPolicy(1, every_steps=3))
    for step in range(1, 9):
        commit(store, step)
    assert [int(name.split("-")[1]) for name in names(tmp_path)] == [3, 6, 8]


def test_checkpoints_are_not_removed_while_a_pin_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, keep=1)
    commit(store, 1)
    (tmp_path / PINS_FOLDER).mkdir()
    real = os.rename
    locked = []

    def rename(source: Path, target: Path) -> None:
        if ".removing-" in str(target):
            with (tmp_path / PINS_FOLDER / ".lock").open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.append(source)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    commit(store, 2)
    assert len(locked) == 1
