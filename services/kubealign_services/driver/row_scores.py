"""Scores given sequences through scorers on the message bus. Each sequence is published as a rollout that has
arrived already.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubealign.v1 import batch_pb2, rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.driver.exchange import Exchange, new_group
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.ledger import Failure, Ledger

#: Most sequences requested at a time: more would only queue on the bus, whose storage is limited.
IN_FLIGHT = 256
_PURPOSE = "train"
#: The columns that scorers of given sequences read.
_COLUMNS = frozenset({"loss_mask"})

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Told:
    """Input of a scorer besides the tokens of a sequence. columns: JSON, as in
    `work_items.encode_scoring_context`.
    """

    columns: bytes = b""
    response: str = ""


class RowScores:
    """Client of scorers on the bus, by source name. Retries requests that are overdue, failed or lost with
    the bus.

    Args:
        timeout: Deadline of each sequence in seconds.
        retries: Retries per sequence.
    """

    def __init__(self, exchange: Exchange, sources: Sequence[str], timeout: float, retries: int) -> None:
        self._exchange = exchange
        self._sources = tuple(sources)
        self._timeout = timeout
        self._retries = retries
        self._asked = 0
        self._told: dict[str, Told] = {}
        self._ledger = Ledger(exchange.fence, _PURPOSE, self._sources)
        exchange.register(self._ledger, self._ask_for_the_missing)

    async def of(self, batch: Batch) -> list[scoring_pb2.Score]:
        """Return the only source's score of each sequence, in order.

        Raises:
            UnrecoverableError: A sequence was not scored after all retries.
            ShutdownRequested: The driver was asked to stop.
        """
        (source,) = self._sources
        return [scores[source] for scores in await self.all_of(batch)]

    async def all_of(self, batch: Batch, told: Sequence[Told] = ()) -> list[dict[str, scoring_pb2.Score]]:
        """Return source -> score of each sequence, in order. Raises as `score`.

        Args:
            contexts: One per sequence, if a source needs it.
        """
        scores: list[dict[str, scoring_pb2.Score]] = []
        scoring_contexts = told or [Told()] * len(batch)
        for first in range(0, len(batch), IN_FLIGHT):
            wave = range(first, min(first + IN_FLIGHT, len(batch)))
            scores += await self._wave([(batch.select([index]), scoring_contexts[index]) for index in wave])
        return scores

    async def _wave(self, asked: Sequence[tuple[Batch, Told]]) -> list[dict[str, scoring_pb2.Score]]:
        """Score one wave of at most MAX_IN_FLIGHT sequences."""
        names = []
        sequences = [sequence for sequence, _ in asked]
        try:
            for sequence, context in asked:
                # A row is requested again in each epoch, and the bus rejects a repeated message id.
                self._asked += 1
                names.append(f"{self._asked}/{sequence.sample_ids[0]}")
                self._told[names[-1]] = context
                self._ledger.open(new_group(names[-1], 1, 0, self._timeout))
            await asyncio.gather(
                *(self._publish(name, _bare(part)) for name, part in zip(names, sequences, strict=True))
            )
            while self._ledger.unfinished():
                failed = {failure.group_id: failure for failure in await self._exchange.wait(self._ledger)}
                for failure in failed.values():
                    await self._failed(failure)
            groups = [self._ledger.groups[name] for name in names]
            return [{source: group.score(0, source) for source in self._sources} for group in groups]
        finally:
            self._ledger.groups.clear()
            self._told.clear()

    async def _publish(self, name: str, sequence: batch_pb2.PackedBatch) -> None:
        """Publish a sequence as a rollout."""
        group = self._ledger.groups[name]
        rollout = rollout_pb2.Rollout(
            fence=self._exchange.fence,
            group_id=name,
            attempt=group.attempt,
            sample=0,
            sequence=sequence,
            finish_reason=rollout_pb2.FINISH_REASON_STOP,
            purpose=_PURPOSE,
            columns=self._told[name].columns,
            response=self._told[name].response,
        )
        self._ledger.add_rollout(rollout, time.monotonic())
        await self._exchange.ask_scores(rollout)

    async def _failed(self, failure: Failure) -> None:
        """Retry a failed request, or raise UnrecoverableError after the last retry."""
        group = self._ledger.groups.get(failure.group_id)
        if group is None:
            return
        if group.attempt >= self._retries:
            raise JobFailed(
                f"{' or '.join(self._sources)} did not score {failure.group_id.partition('/')[2]} in "
                f"{group.attempt + 1} tries; the last error: {failure.cause}"
            )
        log.warning(
            "retrying the score of a row",
            extra={"row": failure.group_id, "attempt": group.attempt, "cause": failure.cause},
        )
        sequence = group.rollouts[0].sequence
        self._ledger.again(failure.group_id, time.monotonic() + self._timeout)
        await self._publish(failure.group_id, sequence)

    async def _ask_for_the_missing(self) -> None:
        """Publish again the requests of unscored sequences, on a bus that has lost its data."""
        for group in self._ledger.unfinished():
            group.deadline = time.monotonic() + self._timeout
            for rollout in group.unscored(self._ledger.sources):
                await self._exchange.ask_scores(rollout)


def _bare(sequence: Batch) -> batch_pb2.PackedBatch:
    """Encode a sequence with only the columns that scorers read."""
    read = {name: column for name, column in sequence.token_columns.items() if name in _COLUMNS}
    return encode(replace(sequence, token_columns=read, sequence_columns={}))
