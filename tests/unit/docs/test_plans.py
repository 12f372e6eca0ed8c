"""Plans in the documentation equal the output of the command."""

import pytest

from support.doc_blocks import PAGES
from support.plan_blocks import printed, shown

BLOCKS = [(words, text) for page in PAGES for words, text in shown(page)]

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(("words", "text"), BLOCKS, ids=[words for words, _ in BLOCKS])
def test_the_plan_on_the_page_is_what_the_command_prints(words: str, text: str) -> None:
    assert printed(words) == text


def test_the_pages_show_plans() -> None:
    assert len(BLOCKS) >= 4
