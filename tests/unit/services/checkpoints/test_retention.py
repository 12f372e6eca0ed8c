"""Retention of checkpoints."""

from pathlib import Path

import pytest

from kubealign_services.checkpoints.retention import (
    REMOVING_PREFIX,
    WRITING_PREFIX,
    prune_checkpoints,
    remove_leftovers,
)


def folders(parent: Path, *names: str) -> list[Path]:
    paths = [parent / name for name in names]
    for path in paths:
        path.mkdir()
        (path / "shard").write_bytes(b"1")
    return paths


@pytest.mark.parametrize(
    ("keep", "remaining"), [(1, ["c"]), (2, ["b", "c"]), (3, ["a", "b", "c"]), (9, ["a", "b", "c"])]
)
def test_the_newest_checkpoints_are_kept(tmp_path: Path, keep: int, remaining: list[str]) -> None:
    prune_checkpoints(folders(tmp_path, "a", "b", "c"), keep)
    assert sorted(path.name for path in tmp_path.iterdir()) == remaining


def test_nothing_is_deleted_without_checkpoints(tmp_path: Path) -> None:
    prune_checkpoints([], 1)
    assert list(tmp_path.iterdir()) == []


def test_remnants_of_a_crash_are_deleted(tmp_path: Path) -> None:
    folders(tmp_path, f"{WRITING_PREFIX}1", f"{REMOVING_PREFIX}step-1-x", "step-00000002")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
