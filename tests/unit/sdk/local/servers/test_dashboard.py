"""The dashboard started by a run: when it cannot start, one line says so and the run continues."""

from pathlib import Path

import pytest

from kubealign.local.servers import dashboard


def test_missing_packages_are_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_REQUIRED_PACKAGES", ("fastapi", "no_such_package"))
    lines: list[str] = []
    with dashboard.dashboard_process(tmp_path, lines.append):
        assert lines == ["dashboard: not installed: pip install 'kubealign[dashboard]'"]
    assert len(lines) == 1


def test_an_unwritable_directory_is_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    with dashboard.dashboard_process(tmp_path / "not there", lines.append):
        assert lines[0].startswith("dashboard: not started: ")
    assert len(lines) == 1
