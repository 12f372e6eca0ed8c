"""Draws of a mixture: exact shares of each epoch, all rows of a source equally often, and resume."""

from collections import Counter
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.data import PromptDataset
from kubealign_services.data.epoch_shuffle import EpochCursor, RowDraw, take_rows
from kubealign_services.data.errors import DataError
from kubealign_services.data.mixture import MixedSource, MixtureOrder, apportion, check_shares

weights = st.one_of(st.integers(1, 20).map(float), st.sampled_from([0.1, 0.3, 0.25, 2.5, 1e-3]))
mixtures = st.lists(st.tuples(weights, st.integers(1, 12)), min_size=1, max_size=5).map(
    lambda sources: [MixedSource(f"s{i}", weight, rows) for i, (weight, rows) in enumerate(sources)]
)


def shares_by_hand(sources: list[MixedSource], rows: int) -> list[int]:
    """Give one row after another to the source that is furthest below its quota, after the whole rows."""
    parts = [Fraction(str(source.weight)) for source in sources]
    quotas = [part * rows / sum(parts) for part in parts]
    shares = [floor(quota) for quota in quotas]
    while sum(shares) < rows:
        missing = [
            quota - share if share == floor(quota) else -1
            for quota, share in zip(quotas, shares, strict=True)
        ]
        shares[missing.index(max(missing))] += 1
    return shares


@given(sources=mixtures, seed=st.integers(0, 2**63 - 1), shuffle=st.booleans(), epochs=st.integers(1, 4))
def test_draws_of_a_mixture(sources: list[MixedSource], seed: int, shuffle: bool, epochs: int) -> None:
    order = MixtureOrder(sources, seed, shuffle)
    rows = sum(source.rows for source in sources)
    assert order.rows == rows
    expected = shares_by_hand(sources, rows)
    draws, cursor = take_rows(EpochCursor(), rows * epochs, order)
    assert cursor == EpochCursor(epochs, 0)
    assert len(set(draws)) == len(draws)  # unique names
    for epoch in range(epochs):
        drawn = Counter(order.source_of(draw.row) for draw in draws[epoch * rows : (epoch + 1) * rows])
        assert [drawn[source.name] for source in sources] == expected
    times: Counter[int] = Counter()
    for end, draw in enumerate(draws):
        times[draw.row] += 1
        if end % 7 == 0 or end == len(draws) - 1:
            for first, source in zip(starts(sources), sources, strict=True):
                counts = [times[row] for row in range(first, first + source.rows)]
                assert max(counts) - min(counts) <= 1


def starts(sources: list[MixedSource]) -> list[int]:
    return [sum(source.rows for source in sources[:index]) for index in range(len(sources))]


@given(sources=mixtures, shuffle=st.booleans(), counts=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_cursor_is_sufficient_to_resume(sources: list[MixedSource], shuffle: bool, counts: list[int]) -> None:
    full, _ = take_rows(EpochCursor(), sum(counts), MixtureOrder(sources, 3, shuffle))
    cursor, drawn = EpochCursor(), []
    for count in counts:
        taken, cursor = take_rows(cursor, count, MixtureOrder(sources, 3, shuffle))
        drawn += taken
    assert drawn == full


def test_unshuffled_sources_alternate_evenly() -> None:
    order = MixtureOrder([MixedSource("a", 3, 2), MixedSource("b", 1, 6)], 1, shuffle=False)
    draws, _ = take_rows(EpochCursor(), 16, order)
    # Six draws of a, which has two rows, and two of b in each epoch.
    assert [order.source_of(draw.row) for draw in draws] == list("aabaaaba") * 2
    assert [draw for draw in draws if draw.row < 2] == [
        RowDraw(source_pass, row) for source_pass in range(6) for row in range(2)
    ]
    assert [draw for draw in draws if draw.row >= 2] == [RowDraw(0, row) for row in range(2, 6)]


def test_passes_and_epochs_have_their_own_order() -> None:
    sources = [MixedSource("a", 1, 40), MixedSource("b", 1, 40)]
    order = MixtureOrder(sources, 5)
    epochs = [order.draws(epoch, 0, 80) for epoch in (0, 1)]
    layouts = {tuple(order.source_of(draw.row) for draw in epoch) for epoch in epochs}
    passes = {
        tuple(draw.row % 40 for draw in epoch if draw.row // 40 == i) for epoch in epochs for i in (0, 1)
    }
    assert len(layouts) == 2 and len(passes) == 4
    assert order.draws(0, 0, 80) == epochs[0]  # after the cached epoch has changed
    assert MixtureOrder(sources, 6).draws(0, 0, 80) != epochs[0]


@pytest.mark.parametrize(
    ("shares", "rows", "expected"),
    [
        ([0.7, 0.3], 10, [7, 3]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([5, 3, 1], 10, [6, 3, 1]),  # quotas 5.56, 3.33, 1.11
        ([1], 4, [4]),
        ([1e-300, 1], 5, [0, 5]),
    ],
)
def test_largest_remainder(shares: list[float], rows: int, expected: list[int]) -> None:
    assert apportion(shares, rows) == expected


def test_a_source_that_would_never_be_drawn_is_refused() -> None:
    entries = [
        {"name": name, "source": {"path": f"{name}.jsonl"}, "weight": weight}
        for name, weight in (("much", 99.0), ("little", 1.0))
    ]
    mixture = PromptDataset.model_validate({"mixture": entries}).mixture
    assert mixture is not None
    check_shares(mixture, {"much": 90, "little": 10}, "spec.data.prompts")
    message = (
        r"mixture\[1\].weight: 1 of 100 is too little for one of the 40 rows .* little would never be drawn"
    )
    with pytest.raises(DataError, match=message):
        check_shares(mixture, {"much": 30, "little": 10}, "spec.data.prompts")
