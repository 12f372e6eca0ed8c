"""Small complete jobs, one per algorithm, and a table of invalid changes, one field each."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

#: The head of the file describes the fields of a row.
BAD: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("bad_specs.yaml").read_text())

ALGORITHMS = ("sft", "rewardModel", "ppo", "rloo", "grpo")

_SOURCE = {"source": {"path": "data.jsonl"}}
_SPECS: dict[str, dict[str, Any]] = {
    "sft": {"algorithm": {"sft": {}}, "data": {"demonstrations": _SOURCE}},
    "rewardModel": {"algorithm": {"rewardModel": {}}, "data": {"preferences": _SOURCE}},
    "ppo": {
        "algorithm": {"ppo": {}},
        "data": {"prompts": _SOURCE},
        "rewards": [{"name": "helpful", "model": {"path": "reward"}}],
    },
    "rloo": {
        "algorithm": {"rloo": {}},
        "data": {"prompts": _SOURCE},
        "rewards": [{"name": "exact", "function": {"module": "package.module:score"}}],
    },
    "grpo": {
        "algorithm": {"grpo": {}},
        "data": {"prompts": _SOURCE},
        "rewards": [{"name": "exact", "function": {"file": {"path": "reward.py"}}}],
    },
}


def name_of(row: dict[str, Any]) -> str:
    """Return the test id of a row."""
    return f"{row['job']}-{row['path']}"


def bad_job(row: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a row of BAD."""
    return whole_job(row["job"], row.get("set", {}) | dict.fromkeys(row.get("remove", []), ...))


def whole_job(algorithm: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a complete job with changes {dotted path: value}; `...` removes a value."""
    spec = {"maxSteps": 10, "policy": {"model": {"path": "policy"}}, **deepcopy(_SPECS[algorithm])}
    job = {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": algorithm.lower()},
        "spec": spec,
    }
    for path, value in (changes or {}).items():
        *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
        holder: Any = job
        for part in parents:
            if isinstance(holder, dict) and not isinstance(holder.get(part), dict | list):
                holder[part] = {}
            holder = holder[part]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value
    return job
