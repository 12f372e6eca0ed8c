"""The options that every command on a job's file has."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

import typer

from kubealign.spec.parameters import NAME

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


def parameters(given: Sequence[str]) -> Mapping[str, str]:
    """NAME=VALUE to name -> value, the last one of a name. Raises typer.BadParameter."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not re.fullmatch(NAME, name):
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--param")
        found[name] = value
    return found
