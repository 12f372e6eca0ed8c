"""`kubealign plot`: draws curves of metrics of runs into a file."""

from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.completion import complete_job_names
from kubealign.cli.exit_codes import CliExitCode, exit_with_error
from kubealign.cli.options import MachineRunsDir
from kubealign.plots.curves import Axis

#: Metrics drawn by default: the first one that all runs have.
_DEFAULT_METRICS = (
    "reward/mean",
    "rm/accuracy",
    "preference/accuracy",
    "distillation/kl",
    "sft/loss",
    "rm/loss",
    "policy/loss",
    "loss",
)


def plot(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", show_default=False, autocompletion=complete_job_names),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write: .png, .svg or .pdf.")
    ],
    metric: Annotated[
        list[str],
        typer.Option(
            "--metric",
            "-f",
            metavar="NAME[,NAME...]",
            help="Metric to draw, with other names under which a run may report it; may be repeated: one row "
            "of panels each. Default: the reward, the accuracy or the loss.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 (typer copies it)
    x: Annotated[
        list[Axis],
        typer.Option(
            "--x",
            help="Horizontal axis; may be repeated: one column of panels each. seconds: the sum of "
            "seconds/step, so without validations and interruptions.",
        ),
    ] = [Axis.STEP],  # noqa: B006 (typer copies it)
    title: Annotated[str | None, typer.Option("--title", help="Title of the figure.")] = None,
    runs_dir: MachineRunsDir = Path("runs"),
) -> None:
    """Draw curves of metrics of runs, one per RUN, into a file.

    RUN is the name of a run of this machine, a run directory, a metrics.jsonl, a trainer_state.json of
    transformers or TRL, or a file with the rows of `kubealign metrics JOB -o json`. LABEL=RUN names the
    curve; LABEL=RUN,RUN,RUN draws the mean of runs that differ in their seed, with a band from the least to
    the largest value.

    Requires matplotlib: pip install 'kubealign[plot]'.
    """
    from kubealign.plots.curves import (
        MetricNames,
        PlotError,
        RunGroup,
        build_curve,
        parse_group,
        select_default_metric,
    )
    from kubealign.plots.figure import Panel, check_output, draw
    from kubealign.plots.run_files import read_run

    try:
        check_output(output)
        metrics = [MetricNames.parse(text) for text in metric]
        groups = []
        for text in runs:
            label, names = parse_group(text)
            groups.append(RunGroup(label or names[0], [read_run(name, runs_dir) for name in names]))
        metrics = metrics or [select_default_metric(groups, _DEFAULT_METRICS)]
        axes = list(dict.fromkeys(x))
        rows = [
            [Panel(each.title, axis, [build_curve(group, each, axis) for group in groups]) for axis in axes]
            for each in metrics
        ]
        draw(rows, title, output)
    except PlotError as error:
        exit_with_error(str(error), CliExitCode.USAGE)
    typer.echo(output)
