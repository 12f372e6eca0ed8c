"""Console output: coloured and wrapped on a terminal, plain full lines otherwise."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_UNBOUNDED_WIDTH = 10_000
# C0 except tab and newline, delete, and C1: control characters interpreted by terminals.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# The convention of no-color.org.
_NO_COLOR_VARIABLE = "NO_COLOR"
_WITHOUT_COLOR: ContextVar[bool] = ContextVar("plain", default=False)


@contextmanager
def without_color(enabled: bool) -> Iterator[None]:
    """Disable styles of all output within the context, if `enabled`."""
    token = _WITHOUT_COLOR.set(enabled)
    try:
        yield
    finally:
        _WITHOUT_COLOR.reset(token)


def console(*, stderr: bool = False) -> "Console":
    """Return the console of stdout or stderr. NO_COLOR and --no-color disable all styles."""
    from rich.console import Console

    no_style = _WITHOUT_COLOR.get() or bool(os.environ.get(_NO_COLOR_VARIABLE))
    result = Console(stderr=stderr, color_system=None if no_style else "auto", highlight=False, emoji=False)
    if not result.is_terminal:
        result.width = _UNBOUNDED_WIDTH
    return result


def show(target: "Console", *renderables: "RenderableType") -> None:
    """Print renderables; outside of a terminal, without the padding of columns."""
    if target.is_terminal:
        target.print(*renderables, sep="\n", markup=False)
        return
    with target.capture() as captured:
        target.print(*renderables, sep="\n", markup=False)
    text = "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
    target.file.write(text)


def escape_control(text: str) -> str:
    """Escape terminal control characters in foreign text."""
    return _CONTROL_CHARACTERS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
