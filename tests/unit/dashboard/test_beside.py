"""The dashboard beside a run: where it cannot be, one line says so and the run is none the worse."""

from pathlib import Path

import pytest

from kubealign.local import dashboard as beside


def test_what_is_not_installed_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_NEEDED", ("fastapi", "no_such_package"))
    said: list[str] = []
    with beside.dashboard(tmp_path, said.append):
        assert said == ["dashboard: not installed: pip install 'kubealign[dashboard]'"]
    assert len(said) == 1


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    with beside.dashboard(tmp_path / "not there", said.append):
        assert said[0].startswith("dashboard: not started: ")
    assert len(said) == 1
