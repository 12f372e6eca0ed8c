"""`kubealign bench`: measures this machine and sizes the rollout workers of a job."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.options import Overrides, Parameters, parse_parameters

_DEFAULT_STEPS = 8
_SIZING_PANEL = "Sizing of rollout workers"
_STEPS_PANEL = "Full steps"


class BenchFormat(StrEnum):
    """Output format; json is the format that --compare reads."""

    TABLE = "table"
    JSON = "json"


def bench(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", show_default=False, help="A file with one job; default: a small PPO job."
        ),
    ] = None,
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1, help="Duration of the measurements.", rich_help_panel=_SIZING_PANEL),
    ] = 60.0,
    mean_tokens: Annotated[
        float | None,
        typer.Option(
            "--mean-tokens",
            min=1,
            help="Mean response length; default: a quarter of rollout.sampling.maxTokens.",
            show_default=False,
            rich_help_panel=_SIZING_PANEL,
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from-run",
            metavar="FOLDER",
            help="Use the steps of a run, as in runs/NAME, instead of measuring.",
            show_default=False,
            rich_help_panel=_SIZING_PANEL,
        ),
    ] = None,
    max_workers: Annotated[
        int,
        typer.Option(
            "--max-workers", min=1, max=1024, help="Largest number of workers.", rich_help_panel=_SIZING_PANEL
        ),
    ] = 16,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=2,
            max=1000,
            help=f"Run this many full steps and report seconds by phase; without a file {_DEFAULT_STEPS}.",
            show_default=False,
            rich_help_panel=_STEPS_PANEL,
        ),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(
            "--warmup",
            min=0,
            max=100,
            help="Unmeasured steps before them.",
            rich_help_panel=_STEPS_PANEL,
        ),
    ] = 2,
    compare: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="FILE",
            help="Earlier JSON output of a full-step run to compare with.",
            show_default=False,
            rich_help_panel=_STEPS_PANEL,
        ),
    ] = None,
    output: Annotated[
        BenchFormat, typer.Option("--output", "-o", help="Output format; --compare reads json.")
    ] = BenchFormat.TABLE,
) -> None:
    """Measure how many rollout workers keep a job's trainer busy, or how fast this machine runs full steps.

    With a file, the components of its job (engine, trainer, refit) are measured one by one on this
    machine, and the step time is predicted for 1, 2, 3 ... workers. Without a file, or with --steps, a
    short real job is run with all its processes in a temporary folder.
    """
    import tempfile

    from kubealign.bench.measurements import SizingError
    from kubealign.bench.report import BenchmarkError
    from kubealign.cli.exit_codes import CliExitCode, exit_on_error, exit_with_error

    full_steps = file is None or steps is not None or compare is not None
    if full_steps and (from_run is not None or mean_tokens is not None):
        raise typer.BadParameter(
            "--from-run and --mean-tokens go with a FILE, and not with --steps or --compare"
        )
    with exit_on_error(), tempfile.TemporaryDirectory(prefix="kubealign-bench-") as folder:
        try:
            if file is None or full_steps:
                _bench_steps(
                    file, param, set_, steps or _DEFAULT_STEPS, warmup, compare, output, Path(folder)
                )
            else:
                _bench_sizing(
                    file, param, set_, seconds, mean_tokens, from_run, max_workers, output, Path(folder)
                )
        except BenchmarkError as error:
            exit_with_error(str(error))
        except SizingError as error:
            exit_with_error(str(error), CliExitCode.USAGE)


def _bench_steps(
    file: Path | None,
    param: list[str],
    overrides: list[str],
    steps: int,
    warmup: int,
    compare: Path | None,
    output: BenchFormat,
    folder: Path,
) -> None:
    from kubealign.bench.job import run_benchmark, write_benchmark_job
    from kubealign.bench.report import BenchmarkReport, comparability_warnings, report_table
    from kubealign.cli.output import format_json
    from kubealign.cli.terminal import console, show

    baseline = None if compare is None else BenchmarkReport.read(compare)
    report = run_benchmark(
        file or write_benchmark_job(folder), parse_parameters(param), overrides, steps, warmup, folder
    )
    if output is BenchFormat.JSON:
        typer.echo(format_json(report.to_dict()))
    else:
        show(console(), *report_table(report, baseline))
    for difference in comparability_warnings(report, baseline):
        typer.echo(f"measured under different conditions: {difference}", err=True)


def _bench_sizing(
    file: Path,
    param: list[str],
    overrides: list[str],
    seconds: float,
    mean_tokens: float | None,
    from_run: Path | None,
    max_workers: int,
    output: BenchFormat,
    folder: Path,
) -> None:
    from kubealign.bench import calibration
    from kubealign.bench.measurements import StepShape, compute_sizing
    from kubealign.bench.report import BenchmarkError
    from kubealign.cli.output import format_json
    from kubealign.cli.terminal import console, show
    from kubealign.cli.views.sizing_view import sizing_document, sizing_view
    from kubealign.local.run_dir.layout import RunDirectory
    from kubealign.spec.loading.loader import load_jobs

    jobs = load_jobs(file, parse_parameters(param), overrides)
    if len(jobs) != 1:
        raise BenchmarkError(f"{file} holds {len(jobs)} jobs: only one can be measured")
    (job,) = jobs
    shape = StepShape.from_job(job)
    if from_run is not None:
        measurements = calibration.measure_existing_run(RunDirectory(from_run))
    else:
        measurements = calibration.run_calibration(job, mean_tokens, seconds, folder)
    sizing = compute_sizing(measurements, shape, max_workers)
    if output is BenchFormat.JSON:
        typer.echo(format_json(sizing_document(job.name, shape, measurements, sizing)))
    else:
        show(console(), *sizing_view(job.name, shape, measurements, sizing))
