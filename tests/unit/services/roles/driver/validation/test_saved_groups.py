"""Saved responses of a measurement in progress: complete prompts only, and none of a replaced driver."""

from pathlib import Path

import pytest

from kubealign_services.checkpoints.fence import Fence, StaleFence, acquire_fence
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.validation.samples import ValidationSample
from kubealign_services.roles.driver.validation.saved_groups import SavedGroups


def sample(group: str, response: str) -> ValidationSample:
    return ValidationSample(
        group,
        "a?",
        response,
        2,
        False,
        {"exact": 0.5, "other": None},
        {"answer": "é"},
        {},
        [1, 2],
        [-0.5, -1.0],
    )


def saved(folder: Path) -> SavedGroups:
    return SavedGroups(folder / "evaluation", Fence(folder, acquire_fence(folder)))


GROUPS = {name: [sample(name, "x"), sample(name, "y\n")] for name in ("val@3/0", "val@3/1")}


def test_samples_are_read_as_they_were_saved(tmp_path: Path) -> None:
    first = saved(tmp_path)
    assert first.read(3) == {}
    first.append(3, GROUPS)
    again = saved(tmp_path)
    assert again.read(3) == GROUPS
    assert again.read(4) == {}
    again.delete(3)
    assert again.read(3) == {}


def test_a_prompt_that_was_written_in_part_is_not_saved(tmp_path: Path) -> None:
    saved(tmp_path).append(3, GROUPS)
    path = tmp_path / "evaluation" / "responses-000003.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = saved(tmp_path)
    assert again.read(3) == {"val@3/0": GROUPS["val@3/0"]}
    again.append(3, {"val@3/1": GROUPS["val@3/1"]})
    assert again.read(3) == GROUPS


def test_a_replaced_driver_saves_nothing(tmp_path: Path) -> None:
    replaced = saved(tmp_path)
    saved(tmp_path)
    with pytest.raises(StaleFence):
        replaced.append(3, GROUPS)
    assert replaced.read(3) == {}


def test_an_altered_file_fails_with_its_name(tmp_path: Path) -> None:
    file = saved(tmp_path)
    file.append(3, GROUPS)
    path = tmp_path / "evaluation" / "responses-000003.jsonl"
    path.write_text('[{"group_id": 1}]\n')
    with pytest.raises(UnrecoverableError, match=r"responses-000003.jsonl was altered"):
        file.read(3)
