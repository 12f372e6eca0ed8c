"""Row order of a round: each row once per epoch, drawn from seed, round and epoch."""

from kubealign_services.roles.driver.sources.iterative.source import select_row_indices


def all_of(rows: int, epochs: int, step: int, seed: int = 1, number: int = 1) -> list[list[int]]:
    steps, taken = [], 0
    while some := select_row_indices(taken, step, rows, epochs, seed, number):
        steps.append(some)
        taken += len(some)
    return steps


def test_each_row_is_taken_once_per_epoch_and_the_last_step_takes_the_rest() -> None:
    steps = all_of(rows=5, epochs=3, step=4)
    assert [len(step) for step in steps] == [4, 4, 4, 3]
    rows = [row for step in steps for row in step]
    epochs = [rows[:5], rows[5:10], rows[10:]]
    assert all(sorted(epoch) == list(range(5)) for epoch in epochs)


def test_a_step_may_be_longer_than_the_round() -> None:
    (step,) = all_of(rows=2, epochs=3, step=64)
    assert [sorted(step[at : at + 2]) for at in (0, 2, 4)] == [[0, 1]] * 3


def test_the_order_does_not_depend_on_the_steps_and_differs_by_seed_round_and_epoch() -> None:
    flat = [row for step in all_of(16, 2, 5) for row in step]
    assert flat == [row for step in all_of(16, 2, 7) for row in step]
    orders = {
        tuple(flat[:16]),
        tuple(flat[16:]),
        tuple(select_row_indices(0, 16, 16, 1, seed=2, number=1)),
        tuple(select_row_indices(0, 16, 16, 1, seed=1, number=2)),
    }
    assert len(orders) == 4
