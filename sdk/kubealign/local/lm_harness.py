"""Measurement of a model by EleutherAI's lm-evaluation-harness (package lm-eval), in a process of its own."""

import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import yaml

from kubealign.local.run_dir.layout import write_atomically
from kubealign.replay.plan import ReplayError

#: Prefix of the metrics.
PREFIX = "lm_eval/"
#: Half-width of a 95 % interval in standard errors, for a normal distribution.
_HALF_WIDTH = 1.96
_ERROR_SUFFIX = "_stderr"


def read_config(path: Path) -> dict[str, Any]:
    """Return lm-eval's own configuration: the arguments of `lm-eval run`, such as tasks and num_fewshot.

    Raises ReplayError for a file that cannot be read, that names no tasks, or that names a model or its
    folder, which the evaluation sets; and where lm-eval is not installed.
    """
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ReplayError(f"--lm-eval {path}: cannot be read: {error}") from error
    if not isinstance(config, dict) or not config.get("tasks"):
        raise ReplayError(f"--lm-eval {path}: must be a configuration of lm-eval that names tasks")
    arguments = config.get("model_args") or {}
    if not isinstance(arguments, dict):
        raise ReplayError(f"--lm-eval {path}: model_args must be names with values, not {arguments!r}")
    given = [field for field in ("model", "output_path") if field in config]
    given += ["model_args.pretrained"] if "pretrained" in arguments else []
    if given:
        raise ReplayError(f"--lm-eval {path}: {given[0]} is set by the evaluation: remove it")
    if importlib.util.find_spec("lm_eval") is None:
        raise ReplayError("--lm-eval needs the package lm-eval: pip install 'kubealign[lm-eval]'")
    if isinstance(config.get("include_path"), str):
        # Read from the folder of the file, as other paths in files are.
        config["include_path"] = str((path.absolute().parent / config["include_path"]).absolute())
    return config


def measure_model(model: str, config: Mapping[str, Any]) -> dict[str, float]:
    """Measure a model with transformers (lm-eval's model "hf") and return its metrics.

    Names are lm_eval/TASK/METRIC, with a further part for a filter that is not "none". Where lm-eval has a
    standard error, NAME/ci_low and NAME/ci_high are the bounds of the 95 % interval, 1.96 standard errors
    away.

    Args:
        model: Folder of the model, or its name on the hub.
        config: As `read_config` returns it.

    Raises:
        ReplayError: lm-eval failed; its last lines are part of the message.
    """
    with tempfile.TemporaryDirectory(prefix="kubealign-lm-eval-") as name:
        folder = Path(name)
        arguments = {**(config.get("model_args") or {}), "pretrained": model}
        complete = {**config, "model": "hf", "model_args": arguments, "output_path": str(folder / "output")}
        (folder / "config.yaml").write_text(yaml.safe_dump(complete))
        command = [sys.executable, "-m", "lm_eval", "run", "--config", str(folder / "config.yaml")]
        # Its log is shown as it appears; it ends with the reason of a failure.
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        files = sorted((folder / "output").glob("**/results_*.json"))
        if done.returncode != 0 or not files:
            raise ReplayError(f"lm-eval ended with code {done.returncode} for {model}: see its log above")
        return parse_results(json.loads(files[-1].read_text())["results"])


class LmEvalRecord:
    """Metrics of the models that lm-eval has measured, in a file that `kubealign plot` reads.

    Each model is added as soon as it is measured, so that an evaluation that is repeated goes on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: list[dict[str, float]] = []
        if path.exists():
            try:
                self._rows = json.loads(path.read_text())["log_history"]
            except (ValueError, KeyError, TypeError) as error:
                raise ReplayError(f"{path} is no record of lm-eval: delete it, or use --fresh") from error

    @property
    def steps(self) -> list[int]:
        """Steps of the measured models, ascending."""
        return sorted(int(row["step"]) for row in self._rows)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a model, and write the file."""
        self._rows = sorted([*self._rows, {"step": step, **metrics}], key=lambda row: row["step"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, json.dumps({"log_history": self._rows}, indent=1))

    def models(self, steps: Sequence[int]) -> list[dict[str, Any]]:
        """Return the models of these steps as the result of an evaluation has them: step, and metrics."""
        return [
            {
                "step": int(row["step"]),
                "metrics": {name: value for name, value in row.items() if name != "step"},
            }
            for row in self._rows
            if row["step"] in steps
        ]


def parse_results(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of lm-eval's results: task -> "METRIC,FILTER" -> value."""
    metrics: dict[str, float] = {}
    for task, values in results.items():
        for key, value in values.items():
            metric, _, kind = key.partition(",")
            if not kind or metric.endswith(_ERROR_SUFFIX) or not _is_number(value):
                continue
            name = f"{PREFIX}{task}/{metric}" + (f"/{kind}" if kind != "none" else "")
            metrics[name] = float(value)
            error = values.get(f"{metric}{_ERROR_SUFFIX},{kind}")
            if _is_number(error):
                metrics[f"{name}/ci_low"] = value - _HALF_WIDTH * error
                metrics[f"{name}/ci_high"] = value + _HALF_WIDTH * error
    return metrics


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
