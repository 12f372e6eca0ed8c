"""Packages of environments that a test needs."""

from importlib.util import find_spec

import pytest


def needs_package(module: str, extra: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test where the package is not installed."""
    reason = f"{module} is not installed here: pip install 'kubealign[{extra}]'"
    return pytest.mark.skipif(find_spec(module) is None, reason=reason)
