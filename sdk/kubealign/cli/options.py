"""Options shared by several commands."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kubealign.cli.completion import complete_job_names
from kubealign.cli.target import RUNS_DIR_VARIABLE

_BACKEND_PANEL = "Cluster or this machine"

Parameters: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Replace ${NAME} in the file.",
        show_default=False,
    ),
]

Overrides: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set a field, as in spec.seed=2; JOB:spec.seed=2 sets it in that job only.",
        show_default=False,
    ),
]

Local: TypeAlias = Annotated[
    bool,
    typer.Option("--local", help="Use the jobs of this machine, in ./runs.", rich_help_panel=_BACKEND_PANEL),
]
RunsDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--runs-dir",
        metavar="FOLDER",
        help="Use the jobs of this machine in this folder; also set by KUBEALIGN_RUNS_DIR.",
        show_default=False,
        rich_help_panel=_BACKEND_PANEL,
    ),
]
#: Option of commands that work on runs of this machine alone.
MachineRunsDir: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--runs-dir", envvar=RUNS_DIR_VARIABLE, help="Folder with the run directories.", metavar="FOLDER"
    ),
]
Kubeconfig: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig of the cluster; default: KUBECONFIG, ~/.kube/config, or the pod's service account.",
        show_default=False,
        rich_help_panel=_BACKEND_PANEL,
    ),
]
Context: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Context of the kubeconfig.",
        show_default=False,
        rich_help_panel=_BACKEND_PANEL,
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Namespace; default: that of the context.",
        show_default=False,
        rich_help_panel=_BACKEND_PANEL,
    ),
]
Dashboard: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dashboard",
        metavar="URL",
        help="Dashboard with a cluster's metrics and samples; default: KUBEALIGN_DASHBOARD, or the Service "
        "kubealign-dashboard.",
        show_default=False,
        rich_help_panel=_BACKEND_PANEL,
    ),
]
NoColor: TypeAlias = Annotated[
    bool, typer.Option("--no-color", help="Disable colours; also set by NO_COLOR.")
]

JobName: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", show_default=False, autocompletion=complete_job_names)
]
JobNames: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="JOB...", show_default=False, autocompletion=complete_job_names)
]


class OutputFormat(StrEnum):
    """Output formats of jobs. wide: the table with more columns; json and yaml: the resources."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output: TypeAlias = Annotated[OutputFormat, typer.Option("--output", "-o", help="Output format.")]


class DataFormat(StrEnum):
    """Output formats of numeric data."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class RowFormat(StrEnum):
    """Output formats of rows with text."""

    TABLE = "table"
    JSON = "json"


def parse_parameters(assignments: Sequence[str]) -> Mapping[str, str]:
    """Parse NAME=VALUE arguments; the last value of a name wins. Raises typer.BadParameter."""
    from kubealign.spec.loading.parameters import PARAMETER_NAME

    values: dict[str, str] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(PARAMETER_NAME, name):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--param")
        values[name] = value
    return values
