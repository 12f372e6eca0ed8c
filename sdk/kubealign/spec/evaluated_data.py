"""Data of an evaluation that names none: those of its held-out rows."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kubealign.spec.benchmark_presets import preset_data
from kubealign.spec.benchmark_rows import BenchmarkRows


def is_evaluation_without_data(spec: Any) -> bool:
    """Return True if a raw spec is an evaluation that names no data."""
    if not isinstance(spec, dict) or spec.get("data"):
        return False
    algorithm = spec.get("algorithm")
    return isinstance(algorithm, dict) and algorithm.get("evaluate") is not None


def with_evaluated_data(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a raw spec whose data are those of validation.data, or else of the first set, if it is an
    evaluation that names none.

    The rest of the job then has one kind of rows, whatever its algorithm.
    """
    validation = spec.get("validation")
    if not is_evaluation_without_data(spec) or not isinstance(validation, dict):
        return spec
    data = validation.get("data")
    if data is None:
        sets = validation.get("sets")
        data = _set_data(sets[0]) if isinstance(sets, list) and sets else None
    return spec if data is None else spec | {"data": data}


def _set_data(entry: Any) -> Any:
    """Return the raw data of a raw set; None for an invalid one."""
    if not isinstance(entry, Mapping):
        return None
    preset = entry.get("preset")
    if not isinstance(preset, Mapping):
        return entry.get("data")
    source = preset.get("source")
    try:
        # The source stays as it is written: its path is made absolute when the data are read.
        rows = BenchmarkRows.model_validate_json(json.dumps({**preset, "source": None}))
    except (ValidationError, TypeError):
        return None
    data = preset_data(rows).model_dump(mode="json", by_alias=True, exclude_none=True)
    if source is not None:
        data["prompts"]["source"] = source
    return data
