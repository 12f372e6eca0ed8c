"""Renders the results as tables and a chart: `python -m tests.bench.render [--write docs/benchmarks.md]`.

Without --write they are printed. With --write the text between the page's markers is replaced, and the chart
is written to images/benchmarks.svg next to the page.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench.chart import Bar, chart
from tests.bench.line import Aim, Line
from tests.bench.registry import LINES
from tests.bench.results import QUIET, Result, newest
from tests.bench.side import PHASES

OUT = Path("build/bench")
CHART = Path("images") / "benchmarks.svg"
_TITLE = "How far beyond its aim each line is"
_GIB = 1 << 30


def rows(lines: Mapping[str, Line], results: Mapping[str, Result]) -> list[tuple[Line, Aim, Result | None]]:
    """Return (line, aim, result) of each aim, measured or not."""
    return [(line, aim, results.get(line.name)) for line in lines.values() for aim in line.aims]


def table(lines: Mapping[str, Line], results: Mapping[str, Result]) -> str:
    """Return the table of all aims in Markdown."""
    table_lines = ["| | measured against | aim | measured | met |", "| --- | --- | --- | --- | --- |"]
    last = ""
    for line, aim, result in rows(lines, results):
        first = line.name != last
        last = line.name
        value = None if result is None else result.figures.get(aim.figure)
        met = None if result is None else aim.met(result.figures)
        table_lines.append(
            f"| {f'{line.title} (`{line.name}`)' if first else ''} | {line.against if first else ''} "
            f"| {aim.what}: {aim.bound_text()} | {'-' if value is None else aim.text(value)} "
            f"| {'-' if met is None else 'yes' if met else '**no**'} |"
        )
    return "\n".join(table_lines)


def circumstances(results: Mapping[str, Result]) -> str:
    """Describe machine and versions, and list the lines that were measured on a busy machine."""
    if not results:
        return "Nothing has been measured."
    machines: dict[str, list[str]] = {}
    for name, result in results.items():
        machines.setdefault(_machine(result.machine), []).append(name)
    several = len(machines) > 1
    notes = [f"{', '.join(names)}: {machine}" if several else machine for machine, names in machines.items()]
    quick = [name for name, result in results.items() if result.form == "quick"]
    if quick:
        notes.append(f"In the quick form (6 million weights): {', '.join(quick)}.")
    loud = {name: result.others_cores for name, result in results.items() if result.others_cores > QUIET}
    if loud:
        cores = ", ".join(f"{name} {cores:.1f}" for name, cores in loud.items())
        notes.append(f"The machine was not quiet; cores that everything else used: {cores}.")
    notes += [f"`{result.line}`: {note}." for result in results.values() for note in result.notes]
    return "\n".join(notes)


def _machine(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{facts['cores']} cores ({facts['processor']}), {facts['memory_gib']:g} GiB, "
        f"{facts['accelerator'] or 'no GPU'}; Python {facts['python']}, {versions}."
    )


def phases(result: Result) -> str:
    """Return the median seconds by phase and side, processor time and memory as a Markdown table."""
    sides: Sequence[dict[str, Any]] = result.detail["sides"]
    names = " | ".join(side["name"] for side in sides)
    table_lines = [f"| seconds | {names} |", f"| --- |{' --- |' * len(sides)}"]
    for phase in (*PHASES, "of it refit", "rest", "step"):
        seconds = [side["seconds"].get(phase) for side in sides]
        if any(value is not None for value in seconds):
            cells = " | ".join("" if value is None else f"{value:.2f}" for value in seconds)
            table_lines.append(f"| {phase} | {cells} |")
    memory = " | ".join(f"{side['peak_bytes_of_all'] / _GIB:.2f}" for side in sides)
    cpu = " | ".join(f"{sum(side['cpu_seconds_a_step'].values()):.1f}" for side in sides)
    table_lines += [f"| processor seconds a step | {cpu} |", f"| peak memory, GiB | {memory} |"]
    return "\n".join(table_lines)


def processes(side: Mapping[str, Any]) -> str:
    """Return the usage of each process of a side as a Markdown table."""
    table_lines = ["| by process | processor seconds a step | peak memory, GiB |", "| --- | --- | --- |"]
    for name, size in sorted(side["peak_bytes"].items(), key=lambda item: -item[1]):
        cpu = side["cpu_seconds_a_step"].get(name)
        table_lines.append(f"| {name} | {'' if cpu is None else f'{cpu:.2f}'} | {size / _GIB:.2f} |")
    return "\n".join(table_lines)


def bars(lines: Mapping[str, Line], results: Mapping[str, Result]) -> list[Bar]:
    """Return a bar for each measured aim with a positive bound and value."""
    chart_bars = []
    for line, aim, result in rows(lines, results):
        value = None if result is None else result.figures.get(aim.figure)
        if value is None or value <= 0 or aim.bound <= 0:
            continue
        score = value / aim.bound if aim.at_least else aim.bound / value
        chart_bars.append(
            Bar(f"{line.name}: {aim.what}", f"{aim.text(value)} ({aim.bound_text()})", min(64.0, score))
        )
    return chart_bars


def sections(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the text between the page's markers, by marker name, without markers of unmeasured lines."""
    contents = {"table": table(LINES, results), "circumstances": circumstances(results)}
    if bars(LINES, results):
        contents["chart"] = f"![{_TITLE}]({CHART.as_posix()})"
    for name, result in results.items():
        if "sides" in result.detail:
            contents[f"{name} phases"] = phases(result)
            contents[f"{name} processes"] = processes(result.detail["sides"][0])
    return contents


def written(page: str, contents: Mapping[str, str]) -> str:
    """Return the page with the text of each known `<!-- bench: NAME -->` ... `<!-- end -->` replaced. Raises
    ValueError for a marker that does not end."""

    def put(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- bench: {name} -->\n{contents[name]}\n<!-- end -->" if name in contents else match[0]

    pattern = re.compile(r"<!-- bench: ([a-z0-9 -]+?) -->\n.*?<!-- end -->", re.DOTALL)
    opened, closed = page.count("<!-- bench: "), len(pattern.findall(page))
    if opened != closed:
        raise ValueError(f"{opened} places begin with <!-- bench: NAME -->, {closed} end with <!-- end -->")
    return pattern.sub(put, page)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.render", description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help=f"results ({OUT})")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page with the markers")
    options = parser.parse_args(arguments)
    results = newest(options.out, list(LINES))
    contents = sections(results)
    if options.write is None:
        for name, text in contents.items():
            print(f"{name}\n\n{text}\n")
        return
    options.write.write_text(written(options.write.read_text(), contents))
    drawn = bars(LINES, results)
    if drawn:
        (options.write.parent / CHART).write_text(chart(drawn, f"{_TITLE} (to the right: better)"))


if __name__ == "__main__":
    main(sys.argv[1:])
