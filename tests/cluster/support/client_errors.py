"""How a client's request is refused."""

from collections.abc import Awaitable
from typing import Any

import pytest


async def refused(kind: type[Exception], work: Awaitable[Any], *parts: str) -> Exception:
    """The error of this kind that the work ends with; its text has all the parts."""
    with pytest.raises(kind) as caught:
        await work
    for part in parts:
        assert part in str(caught.value)
    return caught.value
