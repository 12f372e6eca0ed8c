"""Answers of the API server with objects that are nested too deeply."""

import json
from typing import Any

import pytest

from kubealign.bounded_json import BoundedJsonError
from kubealign.kube.documents import MAX_DEPTH, UnreadableObject, parse_event, parse_list, parse_object
from support.deep_documents import nested, with_deep_affinity
from support.rendering.jobs import sft

_AFFINITY = "spec.podTemplate.spec.affinity.nodeAffinity.a"
#: spec, podTemplate, spec, affinity and the job itself.
_LEVELS_AROUND = 5


def _good() -> dict[str, Any]:
    job = sft()
    job["metadata"] |= {"name": "good", "uid": "good"}
    return job


@pytest.mark.parametrize("levels", [2_000, 9_000])
def test_an_unreadable_object_of_a_list_leaves_the_others_as_they_are(levels: int) -> None:
    items = f"[{with_deep_affinity(sft(), levels)},{json.dumps(_good())}]"
    text = f'{{"metadata":{{"resourceVersion":"8"}},"items":{items}}}'
    page = parse_list(text.encode())
    deep, good = page["items"]
    assert page["metadata"] == {"resourceVersion": "8"}
    assert not isinstance(good, UnreadableObject)
    assert good == _good()
    assert isinstance(deep, UnreadableObject)
    assert deep.reason == f"{_AFFINITY} is nested too deeply: at most 100 levels are allowed in a job"
    assert deep["metadata"] == sft()["metadata"]
    assert deep["spec"]["maxSteps"] == 10
    assert "(nested too deeply)" in json.dumps(deep)


def test_the_limit_is_the_same_in_a_list_a_watch_and_an_answer() -> None:
    for levels, is_readable in ((MAX_DEPTH - _LEVELS_AROUND, True), (MAX_DEPTH - _LEVELS_AROUND + 1, False)):
        text = with_deep_affinity(sft(), levels)
        items = [
            parse_object(text.encode()),
            parse_list(f'{{"items":[{text}]}}'.encode())["items"][0],
            parse_event(f'{{"type":"ADDED","object":{text}}}'.encode())["object"],
        ]
        assert [isinstance(item, UnreadableObject) for item in items] == [not is_readable] * 3


def test_only_managed_fields_that_are_too_deep_leave_an_object_readable() -> None:
    text = json.dumps({"metadata": {"name": "a", "managedFields": "FIELDS"}, "spec": {}})
    item = parse_object(text.replace('"FIELDS"', nested(3_000)).encode())
    assert item == {"metadata": {"name": "a"}, "spec": {}}
    assert not isinstance(item, UnreadableObject)


def test_brackets_and_escapes_within_strings_are_no_levels() -> None:
    values = ['{"[' * 500, '\\"{' * 500, "\\" * 501, "é\u2028"]
    text = f'{{"spec":{{"values":{json.dumps(values)},"deep":{nested(500)},"after":{json.dumps(values)}}}}}'
    item = parse_object(text.encode())
    assert isinstance(item, UnreadableObject)
    assert item["spec"]["values"] == item["spec"]["after"] == values
    assert item.reason.startswith("spec.deep.a.a.a.a is nested")


def test_lists_are_levels_too() -> None:
    item = parse_object(('{"spec":' + "[" * 2_000 + "]" * 2_000 + "}").encode())
    assert isinstance(item, UnreadableObject)
    assert item.reason.startswith("spec[0][0][0][0][0] is nested")


def test_a_long_field_name_is_cut_in_the_reason() -> None:
    name = "n" * 100_000
    item = parse_object(f'{{"{name}":{nested(500)}}}'.encode())
    assert isinstance(item, UnreadableObject)
    assert len(item.reason) < 200


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a":', '{"a":' * 500, "[" * 5_000, "]" * 500, '"' * 501, "{]" * 400]
)
def test_what_is_not_an_object_is_refused(text: str) -> None:
    for parse in (parse_object, parse_list, parse_event):
        with pytest.raises(BoundedJsonError):
            parse(text.encode())
