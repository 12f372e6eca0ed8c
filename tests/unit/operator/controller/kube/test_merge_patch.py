"""Merge patches: applying a patch yields the target; equal objects yield an empty patch."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kubealign_operator.controller.kube.merge_patch import merge_patch

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(max_size=2), _VALUES, max_size=4)


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _without_nulls(value: Any) -> Any:
    """Remove nulls as an API server does; lists are opaque values."""
    if isinstance(value, dict):
        return {name: _without_nulls(entry) for name, entry in value.items() if entry is not None}
    return value


@given(before=_OBJECTS, after=_OBJECTS)
def test_applying_the_patch_yields_the_target(before: dict[str, Any], after: dict[str, Any]) -> None:
    before, after = _without_nulls(before), _without_nulls(after)
    assert _merged(before, merge_patch(before, after)) == after


@given(held=_OBJECTS)
def test_equal_objects_yield_an_empty_patch(held: dict[str, Any]) -> None:
    held = _without_nulls(held)
    assert merge_patch(held, held) == {}


def test_the_patch_contains_only_differences() -> None:
    before = {"phase": "Starting", "step": 3, "attempts": {"trainer": 1, "rollout-0": 2}}
    after = {"phase": "Running", "step": 3, "attempts": {"trainer": 2, "rollout-0": 2}}
    assert merge_patch(before, after) == {"phase": "Running", "attempts": {"trainer": 2}}
