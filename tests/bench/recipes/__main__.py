"""Results of the recipes: `python -m tests.bench.recipes [RECIPE...]`.

Makes every run that has no record yet, one after the other, and writes docs/results. A run that was
interrupted goes on: kubealign's from its last checkpoint, TRL's from the start.
"""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from tests.bench.recipes.inputs import write_inputs
from tests.bench.recipes.page import BUSY_CORES, write_pages
from tests.bench.recipes.recipe import RECIPES, Recipe
from tests.bench.recipes.records import OURS, PAGES, PEER, read_records, write_record
from tests.bench.recipes.sides import run_recipe

SEEDS = (1, 2, 3)
PEER_SEEDS = (1,)
#: Order of the recipes: those that others need come first.
_ORDER = (
    *("grpo", "reward-model", "sft", "dpo", "rloo", "distillation", "ppo"),
    *("reasoning-gym", "tool-calls"),
)


def missing_runs(
    folder: Path, names: Sequence[str], max_others_cores: float = float("inf")
) -> Iterator[tuple[Recipe, str, int]]:
    """Yield (recipe, side, seed) of the runs without a record: the first seed of every recipe comes first.

    Args:
        max_others_cores: Runs during which everything else used more cores count as missing.
    """
    for seed in SEEDS:
        for name in (name for name in _ORDER if name in names):
            sides = (OURS, PEER) if seed in PEER_SEEDS and RECIPES[name].peer else (OURS,)
            for side in sides:
                records = read_records(folder, name, side)
                if not any(each.seed == seed and each.others_cores <= max_others_cores for each in records):
                    yield RECIPES[name], side, seed


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.recipes", description=__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=", ".join(RECIPES))
    parser.add_argument("--texts", type=Path, required=True, help="folder with preferences.jsonl")
    parser.add_argument("--work", type=Path, default=Path("build/results"), help="inputs and run directories")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--again", action="store_true", help="repeat runs beside other work")
    parser.add_argument("--pages-only", action="store_true", help="write docs/results from the records")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.recipes if name not in RECIPES]
    if unknown:
        parser.error(f"no recipe {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    if not options.pages_only:
        _make_runs(options, console)
    for path in write_pages():
        console.print(f"wrote {path}", soft_wrap=True)
    left = _left(options)
    if left:
        console.print(f"{len(left)} runs are left: {_names(left)}", soft_wrap=True)
    return 0


def _make_runs(options: argparse.Namespace, console: Console) -> None:
    end = time.monotonic() + 60 * options.minutes
    work = options.work.absolute()
    inputs = write_inputs(work, options.texts.absolute())
    for recipe, side, seed in _left(options):
        if time.monotonic() > end:
            return
        console.print(f"{recipe.name}, {side}, seed {seed}: {time.strftime('%H:%M')}")
        record = run_recipe(recipe, side, seed, work, inputs)
        write_record(PAGES, record)
        metric = recipe.measures[0].metric
        first, last = record.first(metric), record.last(metric)
        console.print(f"  {metric} {first:.3f} -> {last:.3f}, {record.seconds / 60:.1f} min")
        if record.others_cores > BUSY_CORES:
            console.print(f"  everything else used {record.others_cores:.2f} cores: the seconds are too long")


def _left(options: argparse.Namespace) -> list[tuple[Recipe, str, int]]:
    most = BUSY_CORES if options.again else float("inf")
    return list(missing_runs(PAGES, options.recipes or list(RECIPES), most))


def _names(runs: Sequence[tuple[Recipe, str, int]]) -> str:
    return ", ".join(f"{recipe.name} {side} {seed}" for recipe, side, seed in runs)


if __name__ == "__main__":
    # Exit like after Ctrl+C, so that the processes of a run end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
