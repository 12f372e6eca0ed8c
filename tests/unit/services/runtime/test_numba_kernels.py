"""Compiled functions where no cache folder is writable."""

from typing import Any

import numpy as np
import pytest

from kubealign_services.runtime.numba_kernels import numba_lazy


def test_without_a_cache_folder() -> None:
    """A function without a file has no cache folder, as with a read-only source tree and home."""
    namespace: dict[str, Any] = {}
    exec("def double(numbers):\n    for i in range(len(numbers)):\n        numbers[i] *= 2\n", namespace)
    with pytest.raises(RuntimeError, match="cannot cache"):
        __import__("numba").njit(cache=True)(namespace["double"])
    numbers = np.arange(3.0)
    numba_lazy(namespace["double"])(numbers)
    assert numbers.tolist() == [0, 2, 4]
