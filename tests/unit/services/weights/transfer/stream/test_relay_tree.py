"""Relay tree: at most `fan_out` children, no cycles, and a source for every receiver."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.weights.transfer.stream.relay_tree import SENDER, RelayRequest, RelayTree

pytestmark = pytest.mark.timeout(60)


def ask(
    name: str, serves: bool = True, delta: bool = False, pieces: frozenset[int] | None = None
) -> RelayRequest:
    return RelayRequest(name, f"{name}:1" if serves else "", pieces, delta)


def test_first_receivers_are_children_of_the_sender() -> None:
    """Fan-out 2: a and b from the sender, c and d from a, e and f from b, g from c."""
    tree = RelayTree(2)
    parents = [tree.assign_parent(ask(name)) for name in "abcdefg"]
    assert parents == [SENDER, SENDER, "a:1", "a:1", "b:1", "b:1", "c:1"]


def test_repeated_request_takes_no_second_slot() -> None:
    tree = RelayTree(2)
    for name in "aab":
        assert tree.assign_parent(ask(name)) == SENDER
    assert tree.assign_parent(ask("c")) == "a:1"


def test_lost_parent_is_replaced_and_not_assigned_again() -> None:
    tree = RelayTree(2)
    for name in "abcdef":
        tree.assign_parent(ask(name))
    # a dies: c reports it and takes a's slot at the sender; d gets a free slot.
    assert tree.assign_parent(ask("c"), ["a:1"]) == SENDER
    assert tree.assign_parent(ask("d"), ["a:1"]) == "c:1"
    assert tree.assign_parent(ask("g")) == "c:1"
    assert tree.assign_parent(ask("h")) != "a:1"
    # a was alive after all.
    assert tree.assign_parent(ask("a")) != SENDER
    assert "a:1" in {tree.assign_parent(ask(name)) for name in "ijklmnopqrstuvwxyz"}


def test_only_reports_about_the_own_parent_count() -> None:
    tree = RelayTree(1)
    for name in "abc":
        tree.assign_parent(ask(name))
    # d was never assigned to c: its report keeps d itself away from c, but not the others.
    assert tree.assign_parent(ask("d", serves=False), ["c:1"]) == SENDER
    assert tree.assign_parent(ask("e")) == "c:1"


def test_parent_must_have_the_requested_pieces() -> None:
    tree = RelayTree(1)
    assert tree.assign_parent(ask("part", pieces=frozenset({1, 2}))) == SENDER
    assert tree.assign_parent(ask("less", pieces=frozenset({2}))) == "part:1"
    # Exceeding the fan-out is better than no source.
    assert tree.assign_parent(ask("all")) == SENDER
    assert tree.assign_parent(ask("more", pieces=frozenset({3}))) == "all:1"


def test_deltas_come_from_receivers_of_deltas() -> None:
    tree = RelayTree(2)
    assert tree.assign_parent(ask("dense")) == SENDER
    assert tree.assign_parent(ask("delta", delta=True)) == SENDER
    assert tree.assign_parent(ask("later", delta=True)) == "delta:1"
    # Receivers of deltas also hold the resulting dense weights.
    assert [tree.assign_parent(ask(name)) for name in ("x", "y", "z")] == ["dense:1", "dense:1", "delta:1"]


def test_receiver_without_an_address_has_no_children() -> None:
    tree = RelayTree(1)
    tree.assign_parent(ask("leaf", serves=False))
    assert tree.assign_parent(ask("b", serves=False)) == SENDER


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 25), st.booleans(), st.booleans()), min_size=1, max_size=80),
)
def test_no_cycles_and_no_overload(fan_out: int, events: list[tuple[int, bool, bool]]) -> None:
    """Receivers ask in any order, repeatedly, and after their parent failed. Reported nodes that have not
    asked since do not count.
    """
    tree = RelayTree(fan_out)
    failed: set[str] = set()
    parents: dict[str, str] = {}
    lost: dict[str, list[str]] = {}
    for number, fails, delta in events:
        name = f"w{number}"
        if fails and parents.get(name, SENDER) != SENDER:
            lost.setdefault(name, []).append(parents[name])
            failed.add(parents[name])
        failed.discard(f"{name}:1")
        reported = lost.get(name, [])
        parent = tree.assign_parent(ask(name, delta=delta), reported)
        assert parent not in reported
        parents[name] = parent
        # The assigned parents of every receiver lead to the sender.
        at, steps = name, 0
        while parents[at] != SENDER:
            at, steps = parents[at].removesuffix(":1"), steps + 1
            assert steps <= len(parents), f"{name} waits for itself"
        crowds = Counter(
            above for below, above in parents.items() if above != SENDER and f"{below}:1" not in failed
        )
        assert max(crowds.values(), default=0) <= fan_out


def test_many_receivers_form_a_shallow_tree() -> None:
    tree = RelayTree(2)
    parents = {f"w{number}:1": tree.assign_parent(ask(f"w{number}")) for number in range(254)}
    assert max(Counter(parents.values()).values()) == 2
    depth: dict[str, int] = {SENDER: 0}
    for address, parent in parents.items():
        depth[address] = depth[parent] + 1
    # 2 + 4 + ... + 128 = 254.
    assert max(depth.values()) == 7
