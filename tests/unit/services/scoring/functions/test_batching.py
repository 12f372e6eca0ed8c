"""Rewards of samples among which some make the function hang or raise."""

from collections.abc import Sequence

import pytest

from kubealign_services.scoring.functions.batching import MAX_CONSECUTIVE_HANGS, BatchedFunction, Outcome
from kubealign_services.scoring.functions.errors import BadReward, RewardError, RewardHung, RewardRaised
from kubealign_services.scoring.functions.results import RewardResult


class Function:
    """Function that takes a second a sample, at most `limit` of them in a call, and records its calls.

    It hangs on negative samples and raises on 0, as often as `failures` says.
    """

    def __init__(self, limit: int = 1000, failures: int = 1000) -> None:
        self.limit, self.failures = limit, failures
        self.calls: list[list[int]] = []

    async def __call__(self, samples: Sequence[int]) -> list[RewardResult]:
        self.calls.append(list(samples))
        if self.failures and min(samples) < 0:
            self.failures -= 1
            raise RewardHung("hung")
        if len(samples) > self.limit:
            raise RewardHung("hung")
        if self.failures and 0 in samples:
            self.failures -= 1
            raise RewardRaised("raised")
        return [RewardResult(float(sample)) for sample in samples]


def kinds(outcomes: Sequence[Outcome]) -> list[object]:
    return [type(outcome) if isinstance(outcome, RewardError) else outcome.reward for outcome in outcomes]


@pytest.mark.parametrize("count", [1, 8, 64])
async def test_the_number_of_pulled_samples_does_not_decide(count: int) -> None:
    """Check a function of 50 ms a sample under a timeout of one second, as it was seen to end jobs."""
    function = Function(limit=20)
    samples = list(range(1, count + 1))
    batched = BatchedFunction(function, 64, reports_errors=True)
    assert kinds(await batched.outcomes(samples)) == [float(sample) for sample in samples]
    # What was too much once is not tried with the next samples.
    function.calls.clear()
    assert kinds(await batched.outcomes(samples)) == [float(sample) for sample in samples]
    assert max(map(len, function.calls)) <= 20


async def test_batches_grow_again() -> None:
    function = Function(limit=4)
    batched = BatchedFunction(function, 8, reports_errors=True)
    await batched.outcomes(range(1, 9))
    function.limit = 1000
    for _ in range(9):
        await batched.outcomes(range(1, 9))
    assert len(function.calls[-1]) == 8


async def test_only_the_sample_that_hangs_fails_after_a_second_call() -> None:
    function = Function()
    samples = [*range(1, 38), -1, *range(38, 64)]
    outcomes = await BatchedFunction(function, 64, reports_errors=True).outcomes(samples)
    assert kinds(outcomes) == [RewardHung if sample < 0 else float(sample) for sample in samples]
    assert not any(isinstance(outcome, RewardError) and outcome.permanent for outcome in outcomes)
    # Six halvings, and the second call of the sample.
    assert len([call for call in function.calls if min(call) < 0]) == 8
    assert function.calls.count([-1]) == 2


async def test_a_sample_that_hangs_once_has_a_reward() -> None:
    outcomes = await BatchedFunction(Function(failures=1), 64, reports_errors=True).outcomes([-1])
    assert kinds(outcomes) == [-1.0]


async def test_samples_that_hang_one_after_another_are_permanent() -> None:
    function = Function()
    batched = BatchedFunction(function, 64, reports_errors=True)
    permanent = []
    for _ in range(MAX_CONSECUTIVE_HANGS):
        [outcome] = await batched.outcomes([-1])
        assert isinstance(outcome, RewardHung)
        permanent.append(outcome.permanent)
    assert permanent == [False] * (MAX_CONSECUTIVE_HANGS - 1) + [True]
    # A reward between them starts the count anew.
    await batched.outcomes([1])
    [outcome] = await batched.outcomes([-1])
    assert isinstance(outcome, RewardHung)
    assert not outcome.permanent


@pytest.mark.parametrize(("reports_errors", "calls"), [(True, 16), (False, 128)])
async def test_a_function_that_always_hangs_is_given_up_where_that_ends_the_job(
    reports_errors: bool, calls: int
) -> None:
    function = Function()
    outcomes = await BatchedFunction(function, 64, reports_errors).outcomes([-1] * 64)
    assert kinds(outcomes) == [RewardHung] * 64
    assert len(function.calls) <= calls + 2


@pytest.mark.parametrize(("reports_errors", "calls"), [(True, 1), (False, 2)])
async def test_a_sample_that_raises_fails_alone(reports_errors: bool, calls: int) -> None:
    function = Function()
    outcomes = await BatchedFunction(function, 64, reports_errors).outcomes([1, 0, 2])
    assert kinds(outcomes) == [1.0, RewardRaised, 2.0]
    assert function.calls.count([0]) == calls


async def test_an_error_of_the_function_is_that_of_every_sample() -> None:
    async def function(samples: Sequence[int]) -> list[RewardResult]:
        raise BadReward("takes (x)")

    outcomes = await BatchedFunction(function, 64, reports_errors=False).outcomes([1, 2])
    assert kinds(outcomes) == [BadReward, BadReward]
