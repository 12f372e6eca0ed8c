"""Scores given sequences through scorers on the message bus.

Each sequence is published as a rollout that has arrived already.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kubealign.v1 import batch_pb2, rollout_pb2, scoring_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector, create_group
from kubealign_services.roles.driver.rollouts.group_tracker import GroupFailure, GroupTracker

#: Most sequences requested at a time: more would only queue on the bus, whose storage is limited.
MAX_IN_FLIGHT = 256
_PURPOSE = "train"
#: The columns that scorers of given sequences read.
_SCORER_COLUMNS = frozenset({"loss_mask"})

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoringContext:
    """Input of a scorer besides the tokens of a sequence. columns: JSON, as in
    `work_items.encode_scoring_context`.
    """

    columns: bytes = b""
    response: str = ""


class RowScorer:
    """Client of scorers on the bus, by source name.

    Retries requests that are overdue, failed or lost with the bus.

    Args:
        timeout: Deadline of each sequence in seconds.
        retries: Retries per sequence.
    """

    def __init__(
        self, collector: RolloutCollector, sources: Sequence[str], timeout: float, retries: int
    ) -> None:
        self._collector = collector
        self._sources = tuple(sources)
        self._timeout = timeout
        self._retries = retries
        self._request_count = 0
        self._contexts: dict[str, ScoringContext] = {}
        self._tracker = GroupTracker(collector.fence, _PURPOSE, self._sources)
        collector.register(self._tracker, self._republish_missing)

    async def score(self, batch: Batch) -> list[scoring_pb2.Score]:
        """Return the only source's score of each sequence, in order.

        Raises:
            UnrecoverableError: A sequence was not scored after all retries.
            ShutdownRequested: The driver was asked to stop.
        """
        (source,) = self._sources
        return [scores[source] for scores in await self.score_all(batch)]

    async def score_all(
        self, batch: Batch, contexts: Sequence[ScoringContext] = ()
    ) -> list[dict[str, scoring_pb2.Score]]:
        """Return source -> score of each sequence, in order. Raises as `score`.

        Args:
            contexts: One per sequence, if a source needs it.
        """
        scores: list[dict[str, scoring_pb2.Score]] = []
        scoring_contexts = contexts or [ScoringContext()] * len(batch)
        for first in range(0, len(batch), MAX_IN_FLIGHT):
            wave = range(first, min(first + MAX_IN_FLIGHT, len(batch)))
            scores += await self._score_wave(
                [(batch.select([index]), scoring_contexts[index]) for index in wave]
            )
        return scores

    async def _score_wave(
        self, requests: Sequence[tuple[Batch, ScoringContext]]
    ) -> list[dict[str, scoring_pb2.Score]]:
        """Score one wave of at most MAX_IN_FLIGHT sequences."""
        names = []
        sequences = [sequence for sequence, _ in requests]
        try:
            for sequence, context in requests:
                # A row is requested again in each epoch, and the bus rejects a repeated message id.
                self._request_count += 1
                names.append(f"{self._request_count}/{sequence.sample_ids[0]}")
                self._contexts[names[-1]] = context
                self._tracker.add(create_group(names[-1], 1, 0, self._timeout))
            await asyncio.gather(
                *(
                    self._publish(name, _encode_scorer_inputs(part))
                    for name, part in zip(names, sequences, strict=True)
                )
            )
            while self._tracker.incomplete:
                failed = {
                    failure.group_id: failure
                    for failure in await self._collector.wait_for_updates(self._tracker)
                }
                for failure in failed.values():
                    await self._handle_failure(failure)
            groups = [self._tracker.groups[name] for name in names]
            return [{source: group.score(0, source) for source in self._sources} for group in groups]
        finally:
            self._tracker.clear()
            self._contexts.clear()

    async def _publish(self, name: str, sequence: batch_pb2.PackedBatch) -> None:
        """Publish a sequence as a rollout."""
        group = self._tracker.groups[name]
        rollout = rollout_pb2.Rollout(
            fence=self._collector.fence,
            group_id=name,
            attempt=group.attempt,
            sample=0,
            sequence=sequence,
            finish_reason=rollout_pb2.FINISH_REASON_STOP,
            purpose=_PURPOSE,
            columns=self._contexts[name].columns,
            response=self._contexts[name].response,
            # Given rows were not sampled.
            temperature=1.0,
        )
        self._tracker.add_rollout(rollout, time.monotonic())
        await self._collector.request_scores(rollout)

    async def _handle_failure(self, failure: GroupFailure) -> None:
        """Retry a failed request, or raise UnrecoverableError after the last retry."""
        group = self._tracker.groups.get(failure.group_id)
        if group is None:
            return
        if group.attempt >= self._retries:
            raise UnrecoverableError(
                f"{' or '.join(self._sources)} did not score {failure.group_id.partition('/')[2]} in "
                f"{group.attempt + 1} tries; the last error: {failure.cause}"
            )
        log.warning(
            "retrying the score of a row",
            extra={"row": failure.group_id, "attempt": group.attempt, "cause": failure.cause},
        )
        sequence = group.rollouts[0].sequence
        self._tracker.reset_for_retry(failure.group_id, time.monotonic() + self._timeout)
        await self._publish(failure.group_id, sequence)

    async def _republish_missing(self) -> None:
        """Publish again the requests of unscored sequences, on a bus that has lost its data."""
        for group in self._tracker.list_incomplete():
            group.deadline = time.monotonic() + self._timeout
            for rollout in group.list_unscored(self._tracker.sources):
                await self._collector.request_scores(rollout)


def _encode_scorer_inputs(sequence: Batch) -> batch_pb2.PackedBatch:
    """Encode a sequence with only the columns that scorers read."""
    read = {name: column for name, column in sequence.token_columns.items() if name in _SCORER_COLUMNS}
    return encode(replace(sequence, token_columns=read, sequence_columns={}))
