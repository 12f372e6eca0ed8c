"""Exported folder: replaced as a whole, with nothing left of an export that was killed."""

import os
import sys
from pathlib import Path

import pytest

from kubealign_services.training.files import hf_folder
from kubealign_services.training.files.hf_folder import atomic_folder

pytestmark = pytest.mark.timeout(60)


def export(directory: Path, text: str) -> None:
    with atomic_folder(directory, directory) as folder:
        (folder / "model").write_text(text)


def export_and_die(directory: Path, text: str, renames: int) -> None:
    """Export in a process that is killed before the rename after `renames`."""
    pid = os.fork()
    if pid == 0:
        rename = Path.rename

        def dying(path: Path, target: Path) -> Path:
            nonlocal renames
            if renames == 0:
                os._exit(9)
            renames -= 1
            return rename(path, target)

        Path.rename = dying  # type: ignore[method-assign, assignment]
        try:
            export(directory, text)
        finally:
            sys.stderr.write("the export was not killed\n")
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.parametrize("renames", [0, 1])
def test_next_export_removes_what_a_killed_one_has_left(tmp_path: Path, renames: int) -> None:
    result = tmp_path / "result"
    others = [tmp_path / name for name in (".other.abcdefgh", ".result.json", ".result")]
    for path in others:
        path.mkdir()
    export(result, "first")
    export_and_die(result, "second", renames)
    assert len([path for path in tmp_path.iterdir() if path not in others]) == 2
    with pytest.raises(RuntimeError), atomic_folder(result, result):
        # A failed export leaves the last complete result.
        raise RuntimeError
    assert (result / "model").read_text() == "first"
    export(result, "third")
    assert sorted(tmp_path.iterdir()) == sorted([*others, result])
    assert (result / "model").read_text() == "third"


def test_temporary_names_are_recognised(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "result", tmp_path) as folder:
        assert hf_folder._TEMPORARY_NAME.fullmatch(folder.name)
