"""Where commands write to: in colour and folded on a terminal, whole lines without colour elsewhere."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ANY_WIDTH = 10_000
# C0 but for tab and newline, delete, and C1: what a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The convention of no-color.org.
_NO_COLOR = "NO_COLOR"
_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def without_color(wanted: bool) -> Iterator[None]:
    """Nothing that is written within has a style, if this is wanted."""
    token = _PLAIN.set(wanted)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def console(*, stderr: bool = False) -> "Console":
    """Of stdout or stderr. The environment's NO_COLOR takes every style away, as --no-color does."""
    from rich.console import Console

    plain = _PLAIN.get() or bool(os.environ.get(_NO_COLOR))
    made = Console(stderr=stderr, color_system=None if plain else "auto", highlight=False, emoji=False)
    if not made.is_terminal:
        made.width = _ANY_WIDTH
    return made


def show(target: "Console", *renderables: "RenderableType") -> None:
    """Print; elsewhere than on a terminal without the blanks that fill up a column."""
    if target.is_terminal:
        target.print(*renderables, sep="\n", markup=False)
        return
    with target.capture() as captured:
        target.print(*renderables, sep="\n", markup=False)
    text = "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
    target.file.write(text)


def safe(text: str) -> str:
    """Text that others have written, such that a terminal shows it and obeys none of it."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
