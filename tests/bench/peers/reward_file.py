"""A workload's reward function."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from tests.bench.workload import REWARD


def reward(folder: Path) -> Callable[..., list[float]]:
    """Return the reward function from the folder of a workload."""
    spec = importlib.util.spec_from_file_location("bench_reward", folder / REWARD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., list[float]] = module.reward
    return function
