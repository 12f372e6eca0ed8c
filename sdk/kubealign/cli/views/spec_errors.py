"""Prints the errors and the notices of a job file to the terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kubealign.diagnostics.job_notices import NoticeLevel, job_notices
from kubealign.spec.errors import SpecError
from kubealign.spec.job import AlignmentJob


def print_errors(errors: Iterable[SpecError]) -> None:
    """Print one error per line to stderr; coloured on a terminal only."""
    console = Console(stderr=True)
    for error in errors:
        text = Text(str(error))
        if error.path:
            text.highlight_words([error.path], style="bold")
        if error.value:
            text.highlight_words([f"it holds {error.value}"], style="red")
        console.print(text, soft_wrap=True)


def print_notices(file: Path, jobs: Sequence[AlignmentJob]) -> None:
    """Print the notices about a file's jobs to stderr, one per line; coloured on a terminal only."""
    console = Console(stderr=True)
    for job in jobs:
        for notice in job_notices(job, jobs):
            style = "yellow" if notice.level is NoticeLevel.WARNING else "dim"
            text = Text(f"{file}: {job.name}: ").append(f"{notice.level}: ", style=style)
            console.print(text.append(f"{notice.path}: {notice.message}"), soft_wrap=True)
