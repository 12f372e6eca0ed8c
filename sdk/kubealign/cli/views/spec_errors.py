"""Prints the errors of a job file to the terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from kubealign.spec.errors import SpecError


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
