"""Compiled functions where nothing can be kept on disk."""

from typing import Any

import numpy as np
import pytest

from kubealign_services.compiled import compiled


def test_without_a_folder_to_keep_it_in() -> None:
    """A function without a file has none: as with a source tree, and a home, that cannot be written."""
    made: dict[str, Any] = {}
    exec("def double(numbers):\n    for i in range(len(numbers)):\n        numbers[i] *= 2\n", made)
    with pytest.raises(RuntimeError, match="cannot cache"):
        __import__("numba").njit(cache=True)(made["double"])
    numbers = np.arange(3.0)
    compiled(made["double"])(numbers)
    assert numbers.tolist() == [0, 2, 4]
