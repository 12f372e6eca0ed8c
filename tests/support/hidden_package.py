"""Hides an installed package from the import system."""

import importlib.machinery
import sys
from typing import Any

import pytest


def hide_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the package impossible to find, as if it were not installed, until the end of the test."""
    find_spec = importlib.machinery.PathFinder.find_spec

    def without_package(module: str, *arguments: Any) -> Any:
        return None if module == name else find_spec(module, *arguments)

    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", without_package)
    monkeypatch.delitem(sys.modules, name, raising=False)
