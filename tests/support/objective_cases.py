"""The objectives of all families, as the modules of tests/unit/services/algorithms/objectives.

Each has `cases()`: name -> (the objective, a function that makes a batch of it with all its columns). It may
have `reported()`: the names of metrics that come from elsewhere, such as from making advantages."""

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
    """FAMILY-NAME -> case."""
    return {
        f"{family}-{name}": case for family, module in families() for name, case in module.cases().items()
    }
