"""Division of minibatches into microbatches."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.training.torch_backend.packing.microbatches import (
    Microbatch,
    minibatches,
    plan_microbatches,
)
from kubealign_services.training.torch_backend.packing.shared_prompts import share_prompts


def test_first_fit_decreasing(make_batch: Callable[..., Batch]) -> None:
    # Longest first: 6, 5, 4, 3, 2. 6 opens A (4 left), 5 opens B (5 left), 4 goes to A (0), 3 to B (2), 2 to
    # B (0).
    plan = plan_microbatches(make_batch(2, 3, 4, 5, 6), unit=1, microbatch_tokens=10, ranks=1)
    assert plan == [[Microbatch([4, 2]), Microbatch([3, 1, 0])]]


def test_ranks_are_balanced_by_tokens(make_batch: Callable[..., Batch]) -> None:
    # 9 to rank 0; 5 to rank 1; 4 to rank 1 (5 < 9); 3 to rank 0 (9 = 9: the lower rank). Loads 12 and 9.
    plan = plan_microbatches(make_batch(3, 4, 5, 9), unit=1, microbatch_tokens=100, ranks=2)
    assert plan == [[Microbatch([3, 0])], [Microbatch([2, 1])]]


def test_an_idle_rank_runs_the_shortest_unit_uncounted(make_batch: Callable[..., Batch]) -> None:
    plan = plan_microbatches(make_batch(5, 2), unit=2, microbatch_tokens=100, ranks=2)
    assert plan == [[Microbatch([0, 1])], [Microbatch([0, 1], is_counted=False)]]


def test_a_unit_longer_than_the_limit_gets_its_own_microbatch(make_batch: Callable[..., Batch]) -> None:
    assert plan_microbatches(make_batch(30, 1), unit=1, microbatch_tokens=10, ranks=1) == [
        [Microbatch([0]), Microbatch([1])]
    ]


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=24),
    unit=st.sampled_from([1, 2, 3]),
    bound=st.integers(1, 80),
    ranks=st.integers(1, 5),
)
def test_every_unit_is_planned_once_and_within_the_limit(
    lengths: list[int], unit: int, bound: int, ranks: int
) -> None:
    lengths = lengths * unit
    batch = pack([[0] * length for length in lengths], [str(i) for i in range(len(lengths))])
    plan = plan_microbatches(batch, unit, bound, ranks)
    assert len(plan) == ranks and len({len(share) for share in plan}) == 1
    counted = [microbatch.sequences for share in plan for microbatch in share if microbatch.is_counted]
    assert sorted(i for sequences in counted for i in sequences) == list(range(len(lengths)))
    for sequences in counted:
        assert all(
            sequences[i : i + unit] == list(range(sequences[i], sequences[i] + unit))
            for i in range(0, len(sequences), unit)
        )
        assert len(sequences) == unit or sum(lengths[i] for i in sequences) <= bound


def sampled(*groups: tuple[int, list[int]]) -> Batch:
    """Build a batch of groups (prompt tokens, response lengths), each with its own prompt."""
    rows = [
        ([g + 1] * prompt, [0] * length) for g, (prompt, lengths) in enumerate(groups) for length in lengths
    ]
    batch = pack([[*prompt, *response] for prompt, response in rows], [str(i) for i in range(len(rows))])
    mask = [[0] * len(prompt) + [1] * len(response) for prompt, response in rows]
    batch.token_columns["loss_mask"] = torch.tensor([each for row in mask for each in row])
    return batch


def test_samples_of_a_prompt_share_a_microbatch_and_the_prompt_counts_once() -> None:
    # Alone 4 + 2, 4 + 1, 4 + 3, 4 + 1 tokens: 23, three microbatches of at most 10. With prompts once: 4 + 3
    # and 4 + 4.
    batch = sampled((4, [2, 1]), (4, [3, 1]))
    assert plan_microbatches(batch, 1, 10, 1, shared=True) == [[Microbatch([2, 3]), Microbatch([0, 1])]]
    assert len(plan_microbatches(batch, 1, 10, 1)[0]) == 3
    assert plan_microbatches(batch, 1, 15, 1, shared=True) == [[Microbatch([2, 3, 0, 1])]]


def test_a_group_is_split_when_it_does_not_fit_or_a_rank_would_idle() -> None:
    # 4 + 5 + 5 tokens of one prompt: 9 fit, 14 do not.
    batch = sampled((4, [5, 5]))
    assert plan_microbatches(batch, 1, 10, 1, shared=True) == [[Microbatch([0]), Microbatch([1])]]
    assert plan_microbatches(batch, 1, 100, 1, shared=True) == [[Microbatch([0, 1])]]
    # Two ranks get 9 tokens each rather than 14 and none.
    assert plan_microbatches(batch, 1, 100, 2, shared=True) == [[Microbatch([0])], [Microbatch([1])]]


def test_ranks_are_balanced_by_cost(make_batch: Callable[..., Batch]) -> None:
    # Tokens alone: 10 against 6 + 4. With n^2 / 10 in addition: 20 against 9.6 + 5.6, so one of 2 (2.4) goes
    # to the second rank, and the other too (17.6 < 20).
    batch = make_batch(10, 6, 4, 2, 2)
    by_tokens, by_cost = (
        [
            sorted(i for part in share for i in part.sequences)
            for share in plan_microbatches(batch, 1, 100, 2, **cost)
        ]
        for cost in ({}, {"attention": 0.1})
    )
    assert by_tokens == [[0, 3], [1, 2, 4]]
    assert by_cost == [[0], [1, 2, 3, 4]]


@given(
    groups=st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(1, 12), min_size=1, max_size=4)),
        min_size=1,
        max_size=8,
    ),
    unit=st.sampled_from([1, 2]),
    bound=st.integers(1, 60),
    ranks=st.integers(1, 4),
    attention=st.sampled_from([0.0, 0.05]),
)
def test_shared_prompts_keep_all_units_and_the_limit(
    groups: list[tuple[int, list[int]]], unit: int, bound: int, ranks: int, attention: float
) -> None:
    batch = sampled(*((prompt, lengths * unit) for prompt, lengths in groups))
    plan = plan_microbatches(batch, unit, bound, ranks, shared=True, attention=attention)
    assert len(plan) == ranks and len({len(share) for share in plan}) == 1
    counted = [each.sequences for share in plan for each in share if each.is_counted]
    assert sorted(i for sequences in counted for i in sequences) == list(range(len(batch)))
    for sequences in counted:
        assert all(
            sequences[i : i + unit] == list(range(sequences[i], sequences[i] + unit))
            for i in range(0, len(sequences), unit)
        )
        part = batch.select(sequences)
        shared = share_prompts(part)
        assert (
            len(sequences) == unit or len(part.tokens if shared is None else shared.computed_indices) <= bound
        )


def test_minibatches_cover_every_unit_once_per_epoch_in_seeded_order(
    make_batch: Callable[..., Batch],
) -> None:
    batch = make_batch(*range(1, 11))

    def order(seed: int) -> list[list[str]]:
        return [part.sample_ids for part in minibatches(batch, 2, 2, 4, seed)]

    parts = order(3)
    assert [len(part) for part in parts] == [4, 4, 2, 4, 4, 2]
    for epoch in (parts[:3], parts[3:]):
        assert sorted(name for part in epoch for name in part) == sorted(batch.sample_ids)
    assert all(int(part[i][1:]) + 1 == int(part[i + 1][1:]) for part in parts for i in range(0, len(part), 2))
    assert parts == order(3) and parts != order(4) and parts[:3] != parts[3:]


def test_units_are_never_split(make_batch: Callable[..., Batch]) -> None:
    with pytest.raises(ValueError, match="3 sequences does not hold whole units of 2"):
        plan_microbatches(make_batch(1, 1, 1), 2, 10, 1)
    with pytest.raises(ValueError, match="minibatches of 3 sequences do not hold whole units of 2"):
        list(minibatches(make_batch(1, 1), 2, 1, 3, 0))


def test_minibatches_hold_all_sequences_of_their_samples(make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(*range(1, 8))
    # Four samples with 1, 3, 1 and 2 sequences.
    batch.sequence_columns["sample"] = torch.tensor([0, 1, 1, 1, 2, 3, 3])
    parts = [part.sequence("sample").tolist() for part in minibatches(batch, 1, 2, 2, seed=1)]
    # Two samples each, so that two epochs are four steps, as without further sequences.
    assert [len(set(part)) for part in parts] == [2, 2, 2, 2]
    for epoch in (parts[:2], parts[2:]):
        assert sorted(sample for part in epoch for sample in part) == [0, 1, 1, 1, 2, 3, 3]
    (whole,) = minibatches(batch, 1, 1, len(batch), seed=1)
    assert len(whole) == 7
    with pytest.raises(ValueError, match=r"units of 2 sequences .* set rollout\.maxSequencesPerSample to 1"):
        list(minibatches(batch, 2, 1, 2, seed=1))


def test_sequences_of_a_sample_are_divided_over_ranks(make_batch: Callable[..., Batch]) -> None:
    batch = make_batch(8, 8, 2)
    batch.sequence_columns["sample"] = torch.tensor([0, 0, 1])
    plan = plan_microbatches(batch, unit=1, microbatch_tokens=10, ranks=2)
    counted = [[part.sequences for part in rank if part.is_counted] for rank in plan]
    assert sorted(index for rank in counted for part in rank for index in part) == [0, 1, 2]
    assert all(any(index < 2 for part in rank for index in part) for rank in counted)
