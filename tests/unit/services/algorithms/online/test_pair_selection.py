"""Selection of the best and the worst sample of each group: by hand, and for random groups."""

from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.algorithms.online.pair_selection import (
    CHOSEN,
    REJECTED,
    UNPAIRED,
    select_pairs,
    trained_samples,
)

#: Few values, so that ties are frequent; zero of either sign is the same reward.
GROUPS = st.lists(
    st.lists(st.sampled_from([-2.5, -0.0, 0.0, 1.0, 3.0]), min_size=1, max_size=5), min_size=1, max_size=5
)


def batch_of(groups: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rewards and the group numbers, which neither begin at 0 nor ascend."""
    rewards = [reward for group in groups for reward in group]
    numbers = [7 - 2 * index for index, group in enumerate(groups) for _ in group]
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(numbers)


def marks_of(*groups: list[float]) -> list[int]:
    return select_pairs(*batch_of(list(groups))).tolist()


def test_by_hand() -> None:
    assert marks_of([1.0, 2.0], [2.0, 1.0]) == [-1, 1, 1, -1]
    assert marks_of([0.5, 2.0, -1.0, 1.0]) == [0, 1, -1, 0]
    assert marks_of([1.0, 1.0], [0.0, 0.0, 1.0]) == [0, 0, 0, -1, 1]
    assert marks_of([3.0]) == [0]
    assert select_pairs(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_of_equal_rewards_the_first_is_the_best_and_the_last_the_worst() -> None:
    assert marks_of([0.0, 2.0, 2.0, 0.0]) == [0, 1, 0, -1]
    assert marks_of([2.0, 0.0, 0.0, 2.0]) == [1, 0, -1, 0]


def test_samples_of_several_groups_may_be_interleaved() -> None:
    rewards, group = torch.tensor([1.0, 5.0, 2.0, 4.0, 3.0]), torch.tensor([0, 1, 0, 1, 0])
    assert select_pairs(rewards, group).tolist() == [-1, 1, 0, -1, 1]


def test_two_samples_of_every_group_stay() -> None:
    rewards, group = batch_of([[1.0, 1.0, 1.0], [0.0, 2.0, 1.0], [4.0], [1.0, 1.0]])
    marks = select_pairs(rewards, group)
    stays = [True, True, False, True, True, False, False, True, True]
    assert trained_samples(marks, group).tolist() == stays


@given(GROUPS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_pairs_of_random_groups(groups: list[list[float]], draw: Random) -> None:
    rewards, numbers = batch_of(groups)
    marks = select_pairs(rewards, numbers)
    stays = trained_samples(marks, numbers)
    start = 0
    for group in groups:
        own, kept = marks[start : start + len(group)].tolist(), stays[start : start + len(group)].tolist()
        start += len(group)
        assert sum(kept) == (2 if len(group) > 1 else 0)
        if max(group) == min(group):
            assert set(own) == {UNPAIRED}
            continue
        assert (own.count(CHOSEN), own.count(REJECTED)) == (1, 1)
        assert group[own.index(CHOSEN)] == max(group) > group[own.index(REJECTED)] == min(group)
        assert kept == [mark != UNPAIRED for mark in own]
        order = list(range(len(group)))
        draw.shuffle(order)
        shuffled = [group[index] for index in order]
        again = marks_of(shuffled)
        # The same rewards form the pair, and without ties the same samples.
        for mark in (CHOSEN, REJECTED):
            assert shuffled[again.index(mark)] == group[own.index(mark)]
            if group.count(group[own.index(mark)]) == 1:
                assert order[again.index(mark)] == own.index(mark)
