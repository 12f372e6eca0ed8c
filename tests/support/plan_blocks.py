"""Output blocks of `kubealign plan` in the documentation.

`python -m support.plan_blocks --write` updates the blocks in the pages.
"""

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from kubealign.cli.main import app
from support.doc_blocks import PAGES, ROOT

_BLOCK = re.compile(
    r"^<!-- printed by: kubealign (?P<words>plan .*?) -->\n```text\n(?P<text>.*?)^```$", re.M | re.S
)


def printed(words: str) -> str:
    """Return the output of a command line; example paths are resolved in the repository."""
    arguments = [str(ROOT / word) if word.startswith("examples/") else word for word in shlex.split(words)]
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def shown(page: Path) -> list[tuple[str, str]]:
    """Return (command line, output) of each block of a page."""
    return [(match["words"], match["text"]) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def renewed(text: str) -> str:
    """Return a page's text with every block updated."""
    return _BLOCK.sub(
        lambda match: match[0][: match.start("text") - match.start()] + printed(match["words"]) + "```", text
    )


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for each in PAGES:
        old = each.read_text(encoding="utf-8")
        new = renewed(old)
        if new != old:
            each.write_text(new, encoding="utf-8")
