"""Runs one side of a recipe and records it."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.kubealign_side import metrics
from tests.bench.machine import environment, facts, job_environment
from tests.bench.process import ROOT, run
from tests.bench.recipes.inputs import Inputs
from tests.bench.recipes.recipe import RECIPES, Recipe
from tests.bench.recipes.records import OURS, PEER, RunRecord, select_rows
from tests.bench.watch import Usage

_TIMEOUT_SECONDS = 5400.0
_NEEDED_SEED = 1


class MissingResult(RuntimeError):
    """A recipe needs the result of another one, which has not run yet."""


def run_recipe(recipe: Recipe, side: str, seed: int, folder: Path, inputs: Inputs) -> RunRecord:
    """Run one side of a recipe. A run of kubealign that was interrupted goes on from its last checkpoint.

    Args:
        folder: Folder of the runs.

    Raises RuntimeError with the end of the output when the command fails, MissingResult where the recipe
    that it needs has no result.
    """
    parameters = {"MODEL": inputs.model, "DATA": inputs.rows(recipe.data)}
    parameters |= {name: _result_of(needed, folder) for name, needed in recipe.needs.items()}
    runs = folder / recipe.name / f"{side}-seed-{seed}"
    began = time.time()
    if side == OURS:
        command, usage, lines = _run_ours(recipe, seed, runs, parameters)
    else:
        command, usage, lines = _run_peer(recipe, seed, runs, parameters)
    return RunRecord(
        recipe.name,
        side,
        seed,
        command,
        time.strftime("%Y-%m-%d %H:%M", time.gmtime(began)),
        round(time.time() - began, 1),
        round(usage.others_cores(began, time.time()), 2) if usage.moments else 0.0,
        facts(),
        select_rows(lines, [measure.metric for measure in recipe.measures]),
    )


def run_folder(folder: Path, recipe: Recipe, seed: int) -> Path:
    """Return the run directory of kubealign's side."""
    return folder / recipe.name / f"{OURS}-seed-{seed}" / recipe.job


def _result_of(name: str, folder: Path) -> Path:
    result = run_folder(folder, RECIPES[name], _NEEDED_SEED) / "result"
    if not (result / "config.json").is_file():
        raise MissingResult(f"{result} does not exist: run the recipe {name} with seed {_NEEDED_SEED} first")
    return result


def _run_ours(
    recipe: Recipe, seed: int, runs: Path, parameters: Mapping[str, Path]
) -> tuple[str, Usage, Sequence[dict[str, Any]]]:
    if (runs / recipe.job / "result").is_dir():
        # A run that is repeated begins again; one that was interrupted goes on.
        shutil.rmtree(runs)
    runs.mkdir(parents=True, exist_ok=True)
    kubealign = Path(sys.executable).with_name("kubealign")
    options = ["--set", f"spec.seed={seed}", "--runs-dir", str(runs), "--no-dashboard"]
    for name, value in parameters.items():
        options += ["--param", f"{name}={value}"]
    command = [str(kubealign), "run", str(recipe.file), *options]
    usage = run(command, runs / "output.txt", job_environment(), _TIMEOUT_SECONDS, "kubealign")
    return _relative(["kubealign", *command[1:]]), usage, metrics(runs / recipe.job)


def _run_peer(
    recipe: Recipe, seed: int, runs: Path, parameters: Mapping[str, Path]
) -> tuple[str, Usage, Sequence[dict[str, Any]]]:
    # A run that was interrupted begins again.
    shutil.rmtree(runs, ignore_errors=True)
    runs.mkdir(parents=True)
    if not recipe.peer_python.is_file():
        raise RuntimeError(f"{recipe.peer_python} is missing: make .venv/.bench .venv/.trl-ppo")
    result = runs / "metrics.jsonl"
    module = f"tests.bench.recipes.trl_side.{recipe.peer}"
    options = [f"--{name.lower().replace('_', '-')}={value}" for name, value in parameters.items()]
    options += [f"--job={recipe.file}", f"--steps={recipe.steps}", f"--seed={seed}", f"--out={result}"]
    command = [str(recipe.peer_python), "-m", module, recipe.name, *options]
    usage = run(command, runs / "output.txt", environment(), _TIMEOUT_SECONDS, PEER)
    return _relative(["python", *command[1:]]), usage, metrics(runs)


def _relative(command: Sequence[str]) -> str:
    return " ".join(command).replace(f"{ROOT}/", "")
