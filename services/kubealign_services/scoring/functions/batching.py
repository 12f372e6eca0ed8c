"""Calls of a reward function on batches, so that a failure is that of one sample.

Pure: the call and the samples are arguments.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from kubealign_services.scoring.functions.errors import RewardError, RewardHung
from kubealign_services.scoring.functions.results import RewardResult

#: A hang is a property of the function, and not of a sample, after this many samples in a row.
MAX_CONSECUTIVE_HANGS = 3
#: Calls with the most samples that precede a try with twice as many.
_CALLS_BEFORE_GROWTH = 16

T = TypeVar("T")
R = TypeVar("R")

#: Result of a sample, or its error.
Outcome = RewardResult | RewardError


class BatchedFunction(Generic[T, R]):
    """Function that is called on batches of samples, and on single samples where a batch fails.

    A batch that hangs is called again in halves until the sample that hangs is known, since the timeout is
    that of one sample: how many samples a worker has pulled must not decide. Where halves return in time, the
    batch was merely too large, and later ones are smaller.

    Args:
        call: Returns one result per sample. Raises RewardError.
        most_samples: Most samples in a call.
        reports_errors: The driver requests the prompt of a failed sample again. The function is then called
            a second time on a sample that hangs, but not on one for which it raises; after
            MAX_CONSECUTIVE_HANGS it is not called on the samples that are left.
    """

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[list[R]]],
        most_samples: int,
        reports_errors: bool,
    ) -> None:
        self._call = call
        self._most_samples = most_samples
        self._reports_errors = reports_errors
        self._batch_size = most_samples
        self._full_calls = 0
        self._consecutive_hangs = 0
        # Error of the function that hangs on every sample, until the next samples.
        self._permanent_hang: RewardHung | None = None

    async def outcomes(self, samples: Sequence[T]) -> list[R | RewardError]:
        """Return one outcome per sample, in order."""
        self._permanent_hang = None
        outcomes: list[R | RewardError] = []
        while len(outcomes) < len(samples):
            start = len(outcomes)
            outcomes += await self._call_batch(samples[start : start + self._batch_size])
        return outcomes

    async def _call_batch(self, samples: Sequence[T]) -> list[R | RewardError]:
        """Call the function on a batch, and on parts of it where it fails."""
        if self._permanent_hang is not None:
            return [self._permanent_hang] * len(samples)
        try:
            return await self._call_once(samples)
        except RewardError as error:
            if not error.is_of_sample:
                return [error] * len(samples)
            if len(samples) == 1:
                return [await self._call_again(samples[0], error)]
            if not isinstance(error, RewardHung):
                return [outcome for sample in samples for outcome in await self._call_batch([sample])]
        half = len(samples) // 2
        outcomes = await self._call_batch(samples[:half]) + await self._call_batch(samples[half:])
        if not any(isinstance(outcome, RewardHung) for outcome in outcomes):
            self._batch_size = min(self._batch_size, half)
        return outcomes

    async def _call_once(self, samples: Sequence[T]) -> list[R | RewardError]:
        """Call the function; let the batches grow again after enough calls in time."""
        results = await self._call(samples)
        self._consecutive_hangs = 0
        if len(samples) == self._batch_size < self._most_samples:
            self._full_calls += 1
            if self._full_calls == _CALLS_BEFORE_GROWTH:
                self._full_calls = 0
                self._batch_size = min(2 * self._batch_size, self._most_samples)
        return list(results)

    async def _call_again(self, sample: T, error: RewardError) -> R | RewardError:
        """Return the outcome of a second call on a sample for which the function failed."""
        if self._consecutive_hangs < MAX_CONSECUTIVE_HANGS and (
            isinstance(error, RewardHung) or not self._reports_errors
        ):
            try:
                return (await self._call_once([sample]))[0]
            except RewardError as second:
                error = second
        if not isinstance(error, RewardHung):
            self._consecutive_hangs = 0
            return error
        self._consecutive_hangs += 1
        if self._reports_errors and self._consecutive_hangs >= MAX_CONSECUTIVE_HANGS:
            error.permanent = True
            self._permanent_hang = error
        return error
