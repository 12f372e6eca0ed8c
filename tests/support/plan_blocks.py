"""What `kubealign plan` prints, where the documentation shows it.

`python -m support.plan_blocks --write` puts what it prints now into the pages.
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
    """What the command line prints of these words; paths are the repository's."""
    found = [str(ROOT / word) if word.startswith("examples/") else word for word in shlex.split(words)]
    return CliRunner().invoke(app, found, catch_exceptions=False).stdout


def shown(page: Path) -> list[tuple[str, str]]:
    """(the words, the text) of each block of a page."""
    return [(found["words"], found["text"]) for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def renewed(text: str) -> str:
    """A page's text with every block as it would be printed now."""
    return _BLOCK.sub(
        lambda found: found[0][: found.start("text") - found.start()] + printed(found["words"]) + "```", text
    )


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    for each in PAGES:
        old = each.read_text(encoding="utf-8")
        new = renewed(old)
        if new != old:
            each.write_text(new, encoding="utf-8")
