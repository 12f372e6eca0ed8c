"""Labels of people and the rows that follow from them."""

import json
from dataclasses import replace

import pytest

from kubealign.client.records import JobRef
from kubealign.human_labels import (
    HumanLabel,
    LabelFormat,
    LabelledResponse,
    Verdict,
    current_labels,
    export_labels,
    label_subject,
    parse_label,
    preference_rows,
    unpaired_rows,
)

LEFT = LabelledResponse("default", "a", 0, "left\u2028 text")
RIGHT = LabelledResponse("default", "b", 5, "right text")
LABEL = HumanLabel("s1", Verdict.LEFT, "ann", 10.0, "p1", "prompt", LEFT, RIGHT, "why")


def test_a_label_is_one_line_that_can_be_read_again() -> None:
    for label in (LABEL, replace(LABEL, right=None, verdict=Verdict.WRONG), replace(LABEL, verdict=None)):
        text = label.to_json()
        assert "\n" not in text
        assert parse_label(json.loads(text)) == label


@pytest.mark.parametrize("changes", [{"verdict": "best"}, {"left": None}, {"right": 3}, {"time": None}])
def test_other_objects_are_no_labels(changes: dict[str, object]) -> None:
    document = json.loads(LABEL.to_json())
    assert parse_label(document | changes) is None
    del document["subject"]
    assert parse_label(document) is None


def test_the_last_label_of_a_subject_counts() -> None:
    second = replace(LABEL, subject="s2", time=11.0)
    changed = replace(LABEL, verdict=Verdict.RIGHT, author="joe", time=12.0)
    assert current_labels([changed, LABEL, second]) == [second, changed]
    withdrawn = replace(LABEL, verdict=None, time=13.0)
    assert current_labels([withdrawn, changed, LABEL, second]) == [second]
    assert current_labels([LABEL, replace(changed, time=LABEL.time)])[0].author == "joe"


def test_rows_of_each_verdict() -> None:
    verdicts = [replace(LABEL, subject=str(verdict), verdict=verdict) for verdict in list(Verdict)[:4]]
    labels = [*verdicts, replace(LABEL, verdict=Verdict.WRONG, right=None)]
    left, right = LEFT.response, RIGHT.response
    assert preference_rows(labels) == [
        {"prompt": "prompt", "chosen": left, "rejected": right},
        {"prompt": "prompt", "chosen": right, "rejected": left},
    ]
    assert [(row["response"], row["label"]) for row in unpaired_rows(labels)] == [
        (left, True),
        (right, True),
        (left, False),
        (right, False),
        (left, False),
    ]
    assert [len(export_labels(labels, form).split("\n")) - 1 for form in LabelFormat] == [2, 5, 5]


def test_the_subject_does_not_depend_on_the_order_of_the_sides() -> None:
    one, two = (JobRef("n", "a"), 1), (JobRef("n", "a"), 2)
    assert label_subject("p", one, two) == label_subject("p", two, one)
    subjects = {label_subject("p", one, two), label_subject("q", one, two), label_subject("p", one)}
    assert len(subjects | {label_subject("p", two)}) == 4
