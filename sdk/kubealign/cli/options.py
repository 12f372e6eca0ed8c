"""The options that several commands have, each said once."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from kubealign.cli.completion import job_names

_SITE = "Which site"

Parameters: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--param",
        metavar="NAME=VALUE",
        help="Fills in ${NAME} in the file.",
        show_default=False,
    ),
]

Overrides: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Sets a value, as in spec.seed=2; JOB:spec.seed=2 in that job alone.",
        show_default=False,
    ),
]

Local: TypeAlias = Annotated[
    bool,
    typer.Option("--local", help="Jobs of this machine, in ./runs.", rich_help_panel=_SITE),
]
RunsDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--runs-dir",
        metavar="FOLDER",
        help="Jobs of this machine, in this folder. KUBEALIGN_RUNS_DIR says the same.",
        show_default=False,
        rich_help_panel=_SITE,
    ),
]
Kubeconfig: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="How to reach the cluster; else KUBECONFIG, ~/.kube/config, or the pod's service account.",
        show_default=False,
        rich_help_panel=_SITE,
    ),
]
Context: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A context of the kubeconfig.",
        show_default=False,
        rich_help_panel=_SITE,
    ),
]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAME",
        help="Else the context's.",
        show_default=False,
        rich_help_panel=_SITE,
    ),
]
Dashboard: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dashboard",
        metavar="URL",
        help="Where a cluster's figures and samples are; else KUBEALIGN_DASHBOARD, or the Service "
        "kubealign-dashboard.",
        show_default=False,
        rich_help_panel=_SITE,
    ),
]
NoColor: TypeAlias = Annotated[
    bool, typer.Option("--no-color", help="No colours on a terminal either. NO_COLOR says the same.")
]

JobName: TypeAlias = Annotated[
    str, typer.Argument(metavar="JOB", show_default=False, autocompletion=job_names)
]
JobNames: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="JOB...", show_default=False, autocompletion=job_names)
]


class Format(StrEnum):
    """How jobs are shown. wide: the table with more columns; json and yaml: the resources."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output: TypeAlias = Annotated[Format, typer.Option("--output", "-o", help="How it is shown.")]


class DataFormat(StrEnum):
    """How figures and the like are shown."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class RowFormat(StrEnum):
    """How what has texts in it is shown."""

    TABLE = "table"
    JSON = "json"


def parameters(given: Sequence[str]) -> Mapping[str, str]:
    """NAME=VALUE to name -> value, the last one of a name. Raises typer.BadParameter."""
    from kubealign.spec.parameters import NAME

    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(NAME, name):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--param")
        found[name] = value
    return found
