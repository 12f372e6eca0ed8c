"""What the documentation shows in fences."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
#: A fence without a language is a terminal's too.
_TERMINAL = ("", "console", "sh")
_OPERATORS = frozenset("();<>|&")


@dataclass(frozen=True)
class Block:
    """One fenced block. `mark`: what an HTML comment on the line before it says."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Those in these languages, in their order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["text"],
            found["mark"] or "",
        )
        for found in _FENCE.finditer(text)
        if found["language"] in languages
    ]


def commands(page: Path) -> Iterator[tuple[Block, Sequence[str]]]:
    """Every command of ours that the page shows, as the arguments of `kubealign`."""
    for block in blocks(page, *_TERMINAL):
        for line in block.text.replace("\\\n", " ").splitlines():
            for words in simple_commands(line):
                if words[:2] == ["kubectl", "align"]:
                    yield block, words[2:]
                elif Path(words[0]).name == "kubealign" and len(words) > 1:
                    yield block, words[1:]


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of one line of a shell; none of a line that is no shell's."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    try:
        found = [*reader, ";"]
    except ValueError:
        # A text over several lines, in quotes.
        return
    for word in found:
        if set(word) <= _OPERATORS:
            if words:
                yield words
            words = []
        else:
            words.append(word)
