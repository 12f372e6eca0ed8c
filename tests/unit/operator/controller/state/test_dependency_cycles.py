"""Dependency cycles."""

import pytest

from kubealign_operator.controller.state.dependency_cycles import find_cycle

# c waits for a and for b, which waits for d alone; a, c and e go round in a ring.
_NEEDS = {"a": ["e"], "b": ["d"], "c": ["a", "b"], "d": [], "e": ["c"], "self": ["self"], "outside": ["a"]}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("a", ("a", "e", "c", "a")),
        ("c", ("c", "a", "e", "c")),
        ("self", ("self", "self")),
        ("b", ()),
        # Waits for a ring without being part of one.
        ("outside", ()),
        ("unknown", ()),
    ],
)
def test_cycles_are_found(name: str, way: tuple[str, ...]) -> None:
    assert find_cycle(name, lambda job: _NEEDS.get(job, ())) == way


def test_the_shortest_cycle_is_returned() -> None:
    needs = {"a": ["b", "c"], "b": ["c"], "c": ["a"]}
    assert find_cycle("a", lambda job: needs[job]) == ("a", "c", "a")
