"""Links within the documentation, and anchors that the code refers to, exist."""

import ast
import re
from pathlib import Path

import pytest

from support.doc_blocks import PAGES, ROOT

_LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_MOST_BYTES = 250_000


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and GitLab derive them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in _HEADING.findall(text)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    dead = []
    for path, anchor in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(f"{path}#{anchor}" if anchor else path)
    assert not dead


def test_the_cookbook_has_a_section_for_each_finding() -> None:
    named = finding_anchors()
    assert len(named) >= 20
    assert named <= anchors(ROOT / "docs" / "cookbook.md")


def finding_anchors() -> set[str]:
    """Return the last argument of each HealthFinding that a rule creates."""
    calls = [
        node
        for path in (ROOT / "sdk" / "kubealign" / "diagnostics" / "health").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "HealthFinding"
    ]
    health_anchors = {ast.literal_eval(call.args[-1]) for call in calls}
    assert all(isinstance(anchor, str) for anchor in health_anchors)
    return health_anchors


def test_quick_starts_are_short() -> None:
    for page in (ROOT / "docs").glob("quickstart-*.md"):
        assert len(page.read_text(encoding="utf-8").splitlines()) < 100, page.name


def test_pictures_are_small_and_shown() -> None:
    shown = {
        (page.parent / path).resolve() for page in PAGES for path, _ in _LINK.findall(page.read_text("utf-8"))
    }
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture in shown, f"no page shows {picture.name}"
        assert picture.stat().st_size <= _MOST_BYTES, picture.name
