"""Writes docs/results from the records: a page and curves for each recipe, and an overview."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tests.bench.process import ROOT
from tests.bench.recipes.recipe import RECIPES, Measure, Recipe
from tests.bench.recipes.records import OURS, PAGES, PEER, RunRecord, read_records

#: Cores of everything else above which the seconds of a run are too long to compare.
BUSY_CORES = 0.3
_TEMPLATES = Path(__file__).parent / "templates"
_TIMEOUT_SECONDS = 120

#: A recipe with the records of kubealign and of the peer.
Measured = tuple[Recipe, Sequence[RunRecord], Sequence[RunRecord]]


def read_measured(folder: Path) -> list[Measured]:
    """Return the recipes that kubealign has run."""
    measured = [
        (recipe, read_records(folder, recipe.name, OURS), read_records(folder, recipe.name, PEER))
        for recipe in RECIPES.values()
    ]
    return [each for each in measured if each[1]]


def write_pages(folder: Path = PAGES) -> list[Path]:
    """Write the pages and the curves of all recipes that have records, and return their paths."""
    measured = read_measured(folder)
    pages = render_pages(measured)
    for name, text in pages.items():
        (folder / name).write_text(text)
    for each in measured:
        _draw(each)
    return [folder / name for name in (*pages, *(f"{recipe.name}.svg" for recipe, _, _ in measured))]


def render_pages(measured: Sequence[Measured]) -> dict[str, str]:
    """Return the Markdown pages by file name."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "median": median,
        "number": _format_number,
        "values": _format_values,
        "step_seconds": _format_step_seconds,
    }
    pages = {
        f"{recipe.name}.md": environment.get_template("recipe.md.j2").render(
            recipe=recipe,
            result=recipe.measures[0],
            ours=ours,
            peer=peer,
            plot=plot_arguments((recipe, ours, peer)),
        )
        for recipe, ours, peer in measured
    }
    if measured:
        machine = measured[0][1][0].machine
        overview = environment.get_template("overview.md.j2")
        pages["README.md"] = overview.render(measured=measured, machine=machine, busy_cores=BUSY_CORES)
    return pages


def plot_arguments(measured: Measured) -> list[str]:
    """Return the arguments of `kubealign` in the repository's root that draw a recipe's curves."""
    recipe, ours, peer = measured
    pages = PAGES.relative_to(ROOT)
    arguments = ["plot"]
    for label, records in ((OURS, ours), (recipe.peer_name.replace(" ", "-"), peer)):
        if records:
            files = (f"{pages}/runs/{recipe.name}/{each.side}-seed-{each.seed}.json" for each in records)
            arguments.append(f"{label}={','.join(files)}")
    for measure in recipe.measures:
        arguments += ["-f", measure.metric]
    return [*arguments, "--x", "step", "--x", "seconds", "-o", f"{pages}/{recipe.name}.svg"]


def _draw(measured: Measured) -> None:
    kubealign = Path(sys.executable).with_name("kubealign")
    command = [str(kubealign), *plot_arguments(measured)]
    subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        timeout=_TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _format_number(value: float, measure: Measure) -> str:
    return f"{value:.{measure.decimals}f}"


def _format_values(records: Sequence[RunRecord], which: str, measure: Measure) -> str:
    """Format the mean of the first or the last values, with their range where there are several."""
    if not records:
        return "-"
    values = [getattr(record, which)(measure.metric) for record in records]
    mean = _format_number(fmean(values), measure)
    if len(values) == 1:
        return mean
    return f"{mean} ({_format_number(min(values), measure)} to {_format_number(max(values), measure)})"


def _format_step_seconds(records: Sequence[RunRecord]) -> str:
    seconds = [each for record in records for each in record.step_seconds]
    return f"{median(seconds):.1f}" if seconds else "-"
