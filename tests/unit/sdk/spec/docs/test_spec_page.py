"""docs/spec.md, generated from the models."""

import re
from pathlib import Path

from kubealign.spec.docs.spec_page import render_page
from kubealign.spec.job import AlignmentJob

PAGE = Path(__file__).parents[5] / "docs" / "spec.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_page(), (
        "run: python -m kubealign.spec.docs.spec_page --write docs/spec.md"
    )


def test_the_example_is_a_valid_job() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", render_page(), re.DOTALL)
    assert AlignmentJob.from_yaml(example).name == "sums"


def test_every_field_has_a_description() -> None:
    rows = [line for line in render_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.rstrip(" |").endswith("|") or not row.split("|")[-2].strip()] == []


def test_links_have_headings() -> None:
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", render_page(), re.MULTILINE)}
    links = set(re.findall(r"\]\(#(\w+)\)", render_page()))
    assert links <= headings
    assert headings - links == {"alignmentjob", "alignmentjobstatus"}
