"""`kubealign validate`: validates job files."""

from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.exit_codes import CliExitCode
from kubealign.cli.options import Overrides, Parameters, parse_parameters


def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
) -> None:
    """Validate job files: list every error of every file, each with its line and the remedy.

    A valid job may have warnings, of settings that can spoil the run, and notes, of settings without effect.
    The fields that presets of validation sets stand for are listed too.
    """
    from kubealign.cli.views.preset_text import preset_texts
    from kubealign.cli.views.spec_errors import print_errors, print_notices
    from kubealign.spec.loading.loader import load_files

    checked, errors = load_files(files, parse_parameters(param), set_)
    print_errors(errors)
    for file in checked:
        print_errors(file.errors)
        if not file.errors:
            jobs = "1 job" if len(file.jobs) == 1 else f"{len(file.jobs)} jobs"
            typer.echo(f"{file.path}: {jobs}, valid")
            print_notices(file.path, file.jobs)
            for text in (text for job in file.jobs for text in preset_texts(job)):
                typer.echo(text)
    if errors or any(file.errors for file in checked):
        raise typer.Exit(CliExitCode.INVALID_JOB)
