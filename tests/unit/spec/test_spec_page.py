"""docs/spec.md is what the models say."""

import re
from pathlib import Path

from kubealign.spec.document import page
from kubealign.spec.job import AlignmentJob

PAGE = Path(__file__).parents[3] / "docs" / "spec.md"


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == page(), "run: python -m kubealign.spec.document --write docs/spec.md"


def test_its_example_is_a_job() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    assert AlignmentJob.from_yaml(example).name == "sums"


def test_every_field_says_what_it_means() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.rstrip(" |").endswith("|") or not row.split("|")[-2].strip()] == []


def test_links_lead_to_headings() -> None:
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", page(), re.MULTILINE)}
    links = set(re.findall(r"\]\(#(\w+)\)", page()))
    assert links <= headings
    assert headings - links == {"alignmentjob", "alignmentjobstatus"}
