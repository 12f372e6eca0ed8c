"""`kubealign explain`: describes a field of a job."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kubealign.spec.docs.field_explanation import FieldExplanation


def _complete_paths(incomplete: str) -> list[str]:
    from kubealign.spec.docs.field_explanation import complete_path

    return complete_path(incomplete)


def explain(
    field: Annotated[
        str,
        typer.Argument(
            metavar="[FIELD]",
            show_default=False,
            help="Such as spec.algorithm.ppo.kl or status.phase; default: the root of the document.",
            autocompletion=_complete_paths,
        ),
    ] = "",
) -> None:
    """Describe a field of a job: type, default, bounds, meaning, and the fields below it."""
    from kubealign.cli.exit_codes import exit_with_error
    from kubealign.cli.terminal import console, show
    from kubealign.spec.docs.field_explanation import UnknownField, explain_field

    try:
        field_explanation = explain_field(field)
    except UnknownField as error:
        exit_with_error(str(error))
    show(console(), *_explanation_view(field_explanation))


def _explanation_view(explanation: "FieldExplanation") -> list["RenderableType"]:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    entry = explanation.field
    head = Table.grid(padding=(0, 3, 0, 0))
    head.add_column(style="dim", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("FIELD", Text(entry.path, style="bold"))
    head.add_row("TYPE", entry.type)
    for name, text in (("DEFAULT", entry.default), ("BOUNDS", entry.bounds)):
        if text:
            head.add_row(name, text)
    parts: list[RenderableType] = [head, Text()]
    texts = (
        [explanation.about]
        if explanation.about.startswith(entry.meaning)
        else [entry.meaning, explanation.about]
    )
    parts += [Text(text) for text in texts if text]
    if explanation.below:
        parts.append(Text("\nEXACTLY ONE OF" if explanation.one_of else "\nFIELDS", style="dim"))
    for below in explanation.below:
        line = Text(f"  {below.path}", style="bold").append(f"  {below.type}", style="cyan")
        notes = [
            "required"
            if below.default == "required"
            else f"default {below.default}"
            if below.default
            else "",
            below.bounds,
        ]
        line.append("".join(f"; {note}" for note in notes if note), style="dim")
        parts += [line, Padding(Text(below.meaning), (0, 0, 0, 6))]
    return parts
