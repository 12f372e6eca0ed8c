"""Preparations for an engine with servers of the user's."""

from pathlib import Path

import pytest

from kubealign.roles import rollout_worker_number, worker_name
from kubealign_services.roles.rollout.engine_factory import clear_weight_folder
from kubealign_services.runtime.process.failures import PermanentFailure


@pytest.mark.parametrize(("replica", "rank"), [(0, 0), (3, 0), (12, 1)])
def test_a_worker_has_the_number_in_its_name(replica: int, rank: int) -> None:
    assert rollout_worker_number(worker_name("rollout", replica, rank)) == replica


def test_each_worker_has_a_folder_that_begins_empty(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    first = clear_weight_folder(shared, "job", "rollout-0")
    second = clear_weight_folder(shared, "job", "rollout-1")
    (first / "left.safetensors").touch()
    (second / "in use.safetensors").touch()
    assert clear_weight_folder(shared, "job", "rollout-0") == first == tmp_path / "shared/job/rollout-0"
    assert not list(first.iterdir()) and len(list(second.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        PermanentFailure, match=r"weightFolder is '.*/file', where the worker cannot write: Not a"
    ):
        clear_weight_folder(str(tmp_path / "file"), "job", "rollout-0")
