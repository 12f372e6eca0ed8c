"""Commands by which the first process of a model tells the others the next operation.

During generation a command is one broadcast of one block of numbers, or two when it is long. While nothing
is generated, which may last for hours, the other processes wait on the group's store: a collective has a
timeout, so a long idle period could not be told from a lost process.
"""

from collections.abc import Sequence
from datetime import timedelta
from enum import IntEnum, auto

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]

from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch

# Numbers that fit into the command's own block: decoding a hundred sequences of some hundred tokens is one
# broadcast.
_INLINE_NUMBERS = 4094
# Seconds after which a waiting process checks that the first process is reachable. A closed connection ends
# the wait at once; the check is for a machine that fails without closing it.
_IDLE_SECONDS = 60.0

ReceivedNumbers = NDArray[np.int64]
Numbers = Sequence[int] | ReceivedNumbers


class Command(IntEnum):
    """Operation that all processes execute at the same time."""

    REST = auto()
    END = auto()
    RESERVE = auto()
    RUN = auto()
    COPY = auto()
    SCORE = auto()
    WEIGHT = auto()
    FETCH = auto()
    ADAPTER = auto()


class CommandSender:
    """Sends commands from the first process. The process group must exist; one thread calls it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake_count = 0
        self._is_awake = False

    def send(self, command: Command, numbers: Numbers = ()) -> None:
        """Broadcast a command. Raises RuntimeError when the other processes do not respond."""
        if not self._is_awake:
            self._wake_count += 1
            self._store.set(f"awake/{self._wake_count}", "")
            self._is_awake = True
        payload = torch.from_numpy(np.array(numbers, np.int64))
        block = torch.zeros(2 + _INLINE_NUMBERS, dtype=torch.int64)
        block[0], block[1] = command, len(payload)
        if len(payload) <= _INLINE_NUMBERS:
            block[2 : 2 + len(payload)] = payload
        dist.broadcast(block, src=0)
        if len(payload) > _INLINE_NUMBERS:
            dist.broadcast(payload, src=0)
        if command in (Command.REST, Command.END):
            self._is_awake = False

    def send_rest(self) -> None:
        """Let the other processes wait on the store: the next command may be far away."""
        if self._is_awake:
            self.send(Command.REST)


class CommandReceiver:
    """Receives commands in the other processes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._wake_count = 0
        self._is_awake = False

    def receive(self) -> tuple[Command, ReceivedNumbers]:
        """Return the next command except REST, and its numbers, without a timeout.

        Raises RuntimeError (of torch) when the first process disappears.
        """
        while True:
            if not self._is_awake:
                self._wake_count += 1
                self._wait_for_wake(f"awake/{self._wake_count}")
                self._is_awake = True
            block = torch.zeros(2 + _INLINE_NUMBERS, dtype=torch.int64)
            dist.broadcast(block, src=0)
            command, count = Command(int(block[0])), int(block[1])
            numbers = block[2 : 2 + count]
            if count > _INLINE_NUMBERS:
                numbers = torch.zeros(count, dtype=torch.int64)
                dist.broadcast(numbers, src=0)
            if command is not Command.REST:
                return command, numbers.numpy()
            self._is_awake = False

    def _wait_for_wake(self, key: str) -> None:
        while True:
            try:
                self._store.wait([key], timedelta(seconds=_IDLE_SECONDS))
                return
            except DistNetworkError:
                raise
            except DistStoreError:
                # A request with its own timeout, which detects an unreachable first process.
                self._store.check([key])


def encode_batch(batch: RaggedBatch) -> NDArray[np.int64]:
    """Encode a batch.

    Layout: number of sequences, number of decoding ones, width of the page tables, number of tokens; then
    the lengths, the defined part of the page tables, the tokens, their positions, and the logit indices.
    """
    most = -(-int(batch.context_lengths.max()) // PAGE_TOKENS)
    tables = batch.page_tables[:, :most]
    sizes = np.array([len(tables), batch.decoding_count, most, len(batch.tokens)], np.int64)
    parts = (sizes, batch.lengths, tables.ravel(), batch.tokens, batch.positions, batch.logit_indices)
    numbers: NDArray[np.int64] = np.concatenate(parts, dtype=np.int64)
    return numbers


def decode_batch(numbers: NDArray[np.int64]) -> RaggedBatch:
    """Decode the output of `encode_batch`."""
    count, decoding, most, total = numbers[:4].tolist()
    lengths, tables, tokens, positions, logit_indices = np.split(
        numbers[4:], np.cumsum([count, count * most, total, total])
    )
    return RaggedBatch(
        tokens, positions, lengths, decoding, tables.reshape(count, most).astype(np.int32), logit_indices
    )
