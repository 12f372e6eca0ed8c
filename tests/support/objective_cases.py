"""Loads the objectives of all families from the modules in tests/unit/services/algorithms/objectives.

Each module has `cases()`: name -> (objective, function that returns a batch with all columns of the
objective). It may have `reported()`: names of metrics from other sources, such as the computation of
advantages."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch

Case: TypeAlias = tuple[Objective, Callable[[], Batch]]
FAMILIES = Path(__file__).parents[1] / "unit" / "services" / "algorithms" / "objectives"


def families() -> Iterator[tuple[str, ModuleType]]:
    for path in sorted(FAMILIES.glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"objectives_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield path.stem, module


def all_cases() -> dict[str, Case]:
    """Return FAMILY-NAME -> case."""
    return {
        f"{family}-{name}": case for family, module in families() for name, case in module.cases().items()
    }
