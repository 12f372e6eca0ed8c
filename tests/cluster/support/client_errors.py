"""Assertion on a request that a client refuses."""

from collections.abc import Awaitable
from typing import Any

import pytest


async def refused(kind: type[Exception], work: Awaitable[Any], *parts: str) -> Exception:
    """Await `work`, assert that it raises `kind` with all `parts` in the text, and return the error."""
    with pytest.raises(kind) as caught:
        await work
    for part in parts:
        assert part in str(caught.value)
    return caught.value
