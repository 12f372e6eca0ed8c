"""The lists of model types in docs/support.md are those of the tests and of `kubealign validate`."""

import re
from pathlib import Path

from kubealign.spec.model_types import FAMILY_TYPES, OTHER_TYPES
from support.model_families import FAMILIES, support_table

PAGE = (Path(__file__).parents[3] / "docs" / "support.md").read_text()


def test_the_table_has_a_row_for_each_tested_family() -> None:
    assert sorted(FAMILIES) == list(FAMILY_TYPES)
    _, _, section = PAGE.partition("\n## Model families\n")
    lines = section.partition("\n## ")[0].splitlines()
    assert [line for line in lines if line.startswith("|")] == support_table()


def test_the_other_types_are_listed() -> None:
    [listed] = re.findall(r"^Other types: (.*)\.$", PAGE, re.MULTILINE)
    assert listed == ", ".join(f"`{name}`" for name in OTHER_TYPES)
