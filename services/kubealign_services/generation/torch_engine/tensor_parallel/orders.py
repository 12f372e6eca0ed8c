"""How the first process of a model says to the others what to compute next.

While passes follow one another an order is one broadcast, of one block of numbers, or two when it is long.
While nothing is generated, which may be for hours, the others wait at the group's store: a collective has a
deadline, and nobody would know a long rest from a lost process.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum, auto

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

# Numbers that travel with the order itself: the decoding of a hundred sequences of some hundred tokens is one
# broadcast.
_INLINE = 4094
# How long a resting process waits before it asks whether the first is there, in seconds. A connection that is
# closed ends the wait at once; this is for a machine that is gone without a word.
_IDLE = 60.0

Received = NDArray[np.int64]
Numbers = Sequence[int] | Received


class Order(IntEnum):
    """What all processes do at the same time."""

    REST = auto()
    END = auto()
    RESERVE = auto()
    RUN = auto()
    COPY = auto()
    SCORE = auto()
    WEIGHT = auto()
    FETCH = auto()
    ADAPTER = auto()


class Leading:
    """The first process's side. The process group has been made; one thread calls it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wakings = 0
        self._awake = False

    def send(self, order: Order, numbers: Numbers = ()) -> None:
        """Raises RuntimeError when the others do not listen."""
        if not self._awake:
            self._wakings += 1
            self._store.set(f"awake/{self._wakings}", "")
            self._awake = True
        said = torch.from_numpy(np.array(numbers, np.int64))
        block = torch.zeros(2 + _INLINE, dtype=torch.int64)
        block[0], block[1] = order, len(said)
        if len(said) <= _INLINE:
            block[2 : 2 + len(said)] = said
        dist.broadcast(block, src=0)
        if len(said) > _INLINE:
            dist.broadcast(said, src=0)
        if order in (Order.REST, Order.END):
            self._awake = False

    def rest(self) -> None:
        """Nothing may come for a long time."""
        if self._awake:
            self.send(Order.REST)


class Following:
    """The others' side."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wakings = 0
        self._awake = False

    def next(self) -> tuple[Order, Received]:
        """The next order but REST, however long there is none, and its numbers. Raises RuntimeError (of
        torch) when the first process vanishes."""
        while True:
            if not self._awake:
                self._wakings += 1
                self._await(f"awake/{self._wakings}")
                self._awake = True
            block = torch.zeros(2 + _INLINE, dtype=torch.int64)
            dist.broadcast(block, src=0)
            order, count = Order(int(block[0])), int(block[1])
            numbers = block[2 : 2 + count]
            if count > _INLINE:
                numbers = torch.zeros(count, dtype=torch.int64)
                dist.broadcast(numbers, src=0)
            if order is not Order.REST:
                return order, numbers.numpy()
            self._awake = False

    def _await(self, key: str) -> None:
        while True:
            try:
                self._store.wait([key], timedelta(seconds=_IDLE))
                return
            except DistNetworkError:
                raise
            except DistStoreError:
                # Asked so that an unreachable first process is seen: the answer has a deadline of its own.
                self._store.check([key])
