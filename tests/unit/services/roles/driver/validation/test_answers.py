"""Answers by which responses vote."""

from typing import Any

import pytest

from kubealign.spec.sections.validation import MajorityVote
from kubealign_services.roles.driver.validation.answers import make_extractor


@pytest.mark.parametrize(
    ("document", "response", "answer"),
    [
        ({"boxed": {}}, r"\boxed{1} and \boxed{ \frac{1}{2} }", r"\frac{1}{2}"),
        ({"boxed": {}}, r"\boxed{}", None),
        ({"boxed": {}}, "12", None),
        ({"number": {}}, "First 3, then 1,234.50 apples.", "1234.5"),
        ({"number": {}}, "It is 7.", "7"),
        ({"number": {}}, "-7.0", "-7"),
        ({"number": {}}, "-0.0", "0"),
        ({"number": {}}, "100", "100"),
        ({"number": {}}, "1,2", "2"),
        ({"number": {}}, "none", None),
        ({"choice": {}}, "The answer is (B).", "B"),
        ({"choice": {"choices": "AB"}}, "The answer is C", None),
        ({"regex": {"pattern": "= *(.*)"}}, "a = 1\nb =  2 ", "2"),
        ({"regex": {"pattern": "= *(.*)"}}, "a =  ", None),
        ({"regex": {"pattern": "(x)?="}}, "=", None),
        ({"regex": {"pattern": "= *(.*)"}}, "a", None),
    ],
)
def test_answers(document: dict[str, Any], response: str, answer: str | None) -> None:
    assert make_extractor(MajorityVote.model_validate(document))(response) == answer
