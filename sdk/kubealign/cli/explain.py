"""`kubealign explain`: describes a field of a job."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kubealign.spec.lookup import Explanation


def _paths(incomplete: str) -> list[str]:
    from kubealign.spec.lookup import paths

    return paths(incomplete)


def explain(
    field: Annotated[
        str,
        typer.Argument(
            metavar="[FIELD]",
            show_default=False,
            help="Such as spec.algorithm.ppo.kl or status.phase; default: the root of the document.",
            autocompletion=_paths,
        ),
    ] = "",
) -> None:
    """Describe a field of a job: type, default, bounds, meaning, and the fields below it."""
    from kubealign.cli.exits import refuse
    from kubealign.cli.terminal import console, show
    from kubealign.spec.lookup import NoSuchField, explanation

    try:
        field_explanation = explanation(field)
    except NoSuchField as error:
        refuse(str(error))
    show(console(), *_view(field_explanation))


def _view(found: "Explanation") -> list["RenderableType"]:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    entry = found.field
    head = Table.grid(padding=(0, 3, 0, 0))
    head.add_column(style="dim", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("FIELD", Text(entry.path, style="bold"))
    head.add_row("TYPE", entry.type)
    for name, text in (("DEFAULT", entry.default), ("BOUNDS", entry.bounds)):
        if text:
            head.add_row(name, text)
    parts: list[RenderableType] = [head, Text()]
    texts = [found.about] if found.about.startswith(entry.meaning) else [entry.meaning, found.about]
    parts += [Text(text) for text in texts if text]
    if found.below:
        parts.append(Text("\nEXACTLY ONE OF" if found.one_of else "\nFIELDS", style="dim"))
    for below in found.below:
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
