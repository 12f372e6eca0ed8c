"""Fenced code blocks of the documentation."""

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
#: Languages of terminal sessions; a fence without a language is one too.
_TERMINAL = ("", "console", "sh")
_OPERATORS = frozenset("();<>|&")


@dataclass(frozen=True)
class Block:
    """One fenced block. `mark`: text of an HTML comment on the line before the block."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            match["text"],
            match["mark"] or "",
        )
        for match in _FENCE.finditer(text)
        if match["language"] in languages
    ]


def commands(page: Path) -> Iterator[tuple[Block, Sequence[str]]]:
    """Yield each kubealign command line of a page, as the arguments of `kubealign`."""
    for block in blocks(page, *_TERMINAL):
        for line in block.text.replace("\\\n", " ").splitlines():
            for words in simple_commands(line):
                if words[:2] == ["kubectl", "align"]:
                    yield block, words[2:]
                elif Path(words[0]).name == "kubealign" and len(words) > 1:
                    yield block, words[1:]


def simple_commands(line: str) -> Iterator[list[str]]:
    """Yield the simple commands of a shell line; none if the line is not valid shell."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    words: list[str] = []
    try:
        tokens = [*reader, ";"]
    except ValueError:
        # A quoted text that spans several lines.
        return
    for word in tokens:
        if set(word) <= _OPERATORS:
            if words:
                yield words
            words = []
        else:
            words.append(word)
