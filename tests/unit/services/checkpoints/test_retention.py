"""Remnants of checkpoints: a driver deletes those of lower fences only."""

from pathlib import Path

import pytest

from kubealign_services.checkpoints.retention import remove_leftovers, removing_name, writing_name

pytestmark = pytest.mark.timeout(60)

NAME = "step-00000002"


def test_leftovers_of_lower_fences_and_own_removals_are_deleted(tmp_path: Path) -> None:
    remaining = [NAME, writing_name(2, NAME), writing_name(3, NAME), removing_name(3, NAME)]
    leftovers = [
        # An older release wrote these two.
        ".writing-00000002-1a2b3c4d",
        ".removing-step-00000002-1a2b3c4d",
        writing_name(1, NAME),
        removing_name(1, NAME),
        removing_name(2, NAME),
    ]
    for name in (*remaining, *leftovers):
        (tmp_path / name / "trainer").mkdir(parents=True)
        (tmp_path / name / "trainer" / "rank-0").write_text("shard")
    remove_leftovers(tmp_path, 2, should_stop=lambda: True)
    assert len(list(tmp_path.iterdir())) == len(remaining) + len(leftovers)
    remove_leftovers(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(remaining)
