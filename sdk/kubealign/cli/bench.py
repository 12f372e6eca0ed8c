"""`kubealign bench`: how fast this machine runs a small real job, or a job of yours."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.options import Overrides, Parameters, parameters


class BenchFormat(StrEnum):
    """json is what --compare reads."""

    TABLE = "table"
    JSON = "json"


def bench(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", show_default=False, help="A file with one job of yours; none: a small PPO."
        ),
    ] = None,
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    steps: Annotated[int, typer.Option("--steps", min=2, max=1000, help="Steps that are measured.")] = 8,
    warmup: Annotated[
        int, typer.Option("--warmup", min=0, max=100, help="Steps before them, which are not.")
    ] = 2,
    output: Annotated[
        BenchFormat, typer.Option("--output", "-o", help="json is what --compare reads.")
    ] = BenchFormat.TABLE,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="FILE", help="An earlier output in JSON.", show_default=False),
    ] = None,
) -> None:
    """Run a short real job on this machine and tell seconds by phase and tokens a second.

    All its processes are real ones; it writes into a temporary folder, and takes about a minute.
    """
    import tempfile

    from kubealign.cli.exits import refuse, told
    from kubealign.cli.printing import as_json
    from kubealign.cli.terminal import console, show
    from kubealign.local.bench_job import measure, write_job
    from kubealign.local.bench_report import BenchFailed, Report, differences, table

    with told(), tempfile.TemporaryDirectory(prefix="kubealign-bench-") as folder:
        try:
            earlier = None if compare is None else Report.read(compare)
            job = file or write_job(Path(folder))
            report = measure(job, parameters(param), set_, steps, warmup, Path(folder))
        except BenchFailed as error:
            refuse(str(error))
    if output is BenchFormat.JSON:
        typer.echo(as_json(report.document()))
    else:
        show(console(), *table(report, earlier))
    for difference in differences(report, earlier):
        typer.echo(f"not measured alike: {difference}", err=True)
