"""A limit on the token reviews that guessed tokens cause."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from kubealign_dashboard.web.problems import RequestRejected

_MAX_ADDRESSES = 4096


@dataclass(frozen=True)
class GuessRates:
    """Maximum numbers of rejected tokens per minute: from one client address, and from all together."""

    per_address: int = 20
    total: int = 200


class _Bucket:
    """A token bucket that starts full with `rate` tokens and is refilled with `rate` tokens per minute."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._level = float(rate)
        self._updated = now

    def level(self, now: float) -> float:
        self._level = min(self._rate, self._level + (now - self._updated) * self._rate / 60.0)
        self._updated = now
        return self._level

    def add(self, amount: int) -> None:
        self._level = min(self._rate, self._level + amount)


class GuessLimit:
    """Counts the reviews of tokens that were never accepted.

    A review is counted when it begins, so that concurrent guesses are limited too, and given back unless the
    token was rejected.
    """

    def __init__(self, rates: GuessRates | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates = rates or GuessRates()
        self._clock = clock
        self._total = _Bucket(self._rates.total, clock())
        self._by_address: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, address: str) -> None:
        """Count a review.

        Raises:
            RequestRejected: Too many tokens from this address, or from all addresses, were rejected.
        """
        now = self._clock()
        bucket = self._bucket(address, now)
        for limited, rate, origin in (
            (bucket, self._rates.per_address, f"from {address or 'this address'}"),
            (self._total, self._rates.total, "from all addresses together"),
        ):
            if limited.level(now) < 1:
                detail = f"more than {rate} tokens {origin} were rejected within a minute: try again later"
                raise RequestRejected(429, "too-many-guesses", detail)
        bucket.add(-1)
        self._total.add(-1)

    def give_back(self, address: str) -> None:
        """Uncount a review whose token was not rejected."""
        self._bucket(address, self._clock()).add(1)
        self._total.add(1)

    def _bucket(self, address: str, now: float) -> _Bucket:
        bucket = self._by_address.get(address)
        if bucket is None:
            bucket = self._by_address[address] = _Bucket(self._rates.per_address, now)
        self._by_address.move_to_end(address)
        while len(self._by_address) > _MAX_ADDRESSES:
            self._by_address.popitem(last=False)
        return bucket
