"""The bounded JSON reader: agreement with json.loads, and one exception for every hostile document."""

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.bounded_json import BoundedJsonError, parse_bounded_json

_LARGE = 10**7

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4),
    max_leaves=20,
)


def _depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(_depth, value.values()), default=0)
        case list():
            return 1 + max(map(_depth, value), default=0)
    return 0


@given(_VALUES, st.booleans())
def test_a_document_within_its_bounds_is_read_as_by_json(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    depth, size = _depth(json.loads(text)), len(text.encode())
    if "\\ud" not in text:
        assert parse_bounded_json(text, size, depth) == json.loads(text)
    assert parse_bounded_json(text.encode(), size, depth) == parse_bounded_json(text, size, depth)
    with pytest.raises(BoundedJsonError, match="bytes long"):
        parse_bounded_json(text.encode(), size - 1, depth)
    if depth:
        with pytest.raises(BoundedJsonError, match=f"nested {depth} levels"):
            parse_bounded_json(text, size, depth - 1)


@given(st.binary(max_size=200) | st.text('[]{}",:\\ud8c0123e-+.NaInfty ', max_size=60))
def test_no_document_raises_anything_else(data: bytes | str) -> None:
    try:
        value = parse_bounded_json(data, 1000, 5)
    except BoundedJsonError:
        return
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    assert _depth(value) <= 5


@pytest.mark.parametrize("depth", [sys.getrecursionlimit(), 1_000_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_is_refused_before_it_is_parsed(depth: int, opening: str) -> None:
    with pytest.raises(BoundedJsonError, match=f"nested {depth} levels deep, at most 50"):
        parse_bounded_json(opening * depth, 10 * _LARGE, 50)


def test_a_deep_stack_of_the_caller_raises_the_same_exception() -> None:
    def parse_at(frames: int) -> object:
        return parse_at(frames - 1) if frames else parse_bounded_json("[" * 900 + "]" * 900, _LARGE, 900)

    with pytest.raises(BoundedJsonError, match="recursion"):
        parse_at(500)


@pytest.mark.parametrize("text", ['"[[[["', r'"\"[[["', r'["\\", "[", "\\\"{{"]', r'{"[\u005b": "]"}'])
def test_brackets_in_strings_do_not_count(text: str) -> None:
    assert parse_bounded_json(text, 100, 1) == json.loads(text)


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "1e999", "[-1e999]", "9" * 301, "9" * 5000]
)
def test_a_number_outside_float64_is_refused(text: str) -> None:
    with pytest.raises(BoundedJsonError):
        parse_bounded_json(text, _LARGE, 10)


def test_the_largest_integer_converts_to_float() -> None:
    assert math.isfinite(float(parse_bounded_json("9" * 300, 300, 0)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud800"', "\ufffd"),
        (r'"\udc00\ud800x"', "\ufffd\ufffdx"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\\ud800"', "\\ud800"),
    ],
)
def test_a_lone_surrogate_is_replaced(text: str, value: str) -> None:
    assert parse_bounded_json(text, 100, 0) == value


@pytest.mark.parametrize(
    "data", [b"\xff", b'"\xed\xa0\x80"', '"\ud800"', "[".encode("utf-16"), b"", b"{", b'"', b"1 2"]
)
def test_what_is_not_json_is_refused(data: bytes | str) -> None:
    with pytest.raises(BoundedJsonError):
        parse_bounded_json(data, 100, 10)


def test_the_size_is_in_bytes_of_utf_8() -> None:
    with pytest.raises(BoundedJsonError, match="5 bytes long, at most 4"):
        parse_bounded_json('"é1"', 4, 0)
