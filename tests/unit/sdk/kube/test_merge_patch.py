"""Merge patches: applying a patch yields the target; equal objects yield an empty patch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.kube.merge_patch import apply_merge_patch, merge_patch_between

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(max_size=2), _VALUES, max_size=4)


def _without_nulls(value: Any) -> Any:
    """Remove nulls as an API server does; lists are opaque values."""
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return value


@given(before=_OBJECTS, after=_OBJECTS)
def test_applying_the_patch_yields_the_target(before: dict[str, Any], after: dict[str, Any]) -> None:
    before, after = _without_nulls(before), _without_nulls(after)
    assert apply_merge_patch(before, merge_patch_between(before, after)) == after


@given(document=_OBJECTS)
def test_equal_objects_yield_an_empty_patch(document: dict[str, Any]) -> None:
    document = _without_nulls(document)
    assert merge_patch_between(document, document) == {}


def test_the_patch_contains_only_differences() -> None:
    before = {"phase": "Starting", "step": 3, "attempts": {"trainer": 1, "rollout-0": 2}}
    after = {"phase": "Running", "step": 3, "attempts": {"trainer": 2, "rollout-0": 2}}
    assert merge_patch_between(before, after) == {"phase": "Running", "attempts": {"trainer": 2}}


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_examples_of_rfc_7386(document: Any, patch: Any, result: Any) -> None:
    assert apply_merge_patch(document, patch) == result
