"""The benchmark: `python -m tests.bench [LINE...]`; without lines, all of them in turn.

Each line's result is written as soon as the line is done, so an interrupted run can continue with the missing
lines (`--missing`). `python -m tests.bench.render` renders the results as the table of docs/benchmarks.md.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tests.bench.line import Bench, Form, Line
from tests.bench.machine import facts
from tests.bench.registry import LINES
from tests.bench.results import QUIET, Result, keep, made, path_of
from tests.bench.watch import Watch

OUT = Path("build/bench")


def measure(line: Line, form: Form, console: Console) -> Result:
    """Run a line and return its result. Exceptions of the run propagate."""
    begun = time.time()
    with tempfile.TemporaryDirectory(prefix=f"kubealign-bench-{line.name}-") as folder:
        bench = Bench(form, Path(folder), lambda text: console.print(f"  {text}"))
        everything = Watch(os.getpid(), lambda parents: dict.fromkeys(parents, "bench"), memory=False)
        with everything as usage:
            outcome = line.run(bench)
    others = usage.others_cores(begun, time.time()) if usage.moments else 0.0
    return made(line, form, outcome, begun, others, facts())


def table(results: Sequence[Result]) -> Table:
    """Return a table of all aims: the bound, the measured value, and whether the aim is met."""
    shown = Table("line", "what", "aim", "measured", "met")
    for result in results:
        for aim in LINES[result.line].aims:
            value = result.figures.get(aim.figure)
            met = aim.met(result.figures)
            shown.add_row(
                result.line,
                aim.what,
                aim.bound_text(),
                "-" if value is None else aim.text(value),
                "-" if met is None else "yes" if met else "[bold]no[/bold]",
            )
    return shown


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("lines", nargs="*", metavar="LINE", help=", ".join(LINES))
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--full", action="store_true", help="the table's work, 25 million weights")
    form.add_argument("--tiny", action="store_true", help="see whether the benchmark works; no figures")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help=f"results ({OUT})")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write this run's results there too")
    parser.add_argument("--missing", action="store_true", help="skip lines that have a result")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.lines if name not in LINES]
    if unknown:
        parser.error(f"no line {', '.join(unknown)}; there are {', '.join(LINES)}")
    chosen = Form.FULL if options.full else Form.TINY if options.tiny else Form.QUICK
    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    done, failed = [], []
    for name in options.lines or LINES:
        if options.missing and path_of(options.out, name, chosen).is_file():
            continue
        console.print(f"{name}: {LINES[name].title}")
        try:
            result = measure(LINES[name], chosen, console)
        # A line that fails does not stop the others.
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            failed.append(f"{name}: {error}")
            continue
        keep(result, options.out)
        done.append(result)
        for note in result.notes:
            console.print(f"  {note}")
        if result.others_cores > QUIET:
            console.print(f"  everything else used {result.others_cores:.2f} cores: not quiet")
        console.print(table([result]))
    if len(done) > 1:
        console.print(table(done))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in done], indent=1))
    for text in failed:
        console.print(f"not measured: {text.splitlines()[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    # Exit like after Ctrl+C, so that the processes a line has started end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
