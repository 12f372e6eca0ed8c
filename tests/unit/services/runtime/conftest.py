"""Installs a package with plugins for imports and entry points."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Install = Callable[[str, dict[str, str]], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a module from its source and its entry points, as GROUP.NAME -> object in the module."""
    installed: list[str] = []

    def add(source: str, points: dict[str, str]) -> None:
        module = f"plugged_{len(installed)}"
        installed.append(module)
        folder = tmp_path / module
        information = folder / f"{module}-1.0.dist-info"
        information.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [
            f"[kubealign.{group}]\n{name} = {module}:{target}\n"
            for point, target in points.items()
            for group, name in [point.split(".")]
        ]
        (information / "entry_points.txt").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(folder)

    yield add
    for module in installed:
        sys.modules.pop(module, None)
