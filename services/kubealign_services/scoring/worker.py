"""Worker that pulls rollouts from the bus and publishes their scores: the elastic side of reward and
reference.

A rollout is acknowledged after its score is published. A failed scorer publishes a result too: a score
with the cause.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.trace import Span

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.messaging.ack_keepalive import extend_ack_deadline
from kubealign_services.messaging.contract import Bus, Delivery
from kubealign_services.messaging.decoding import decode_or_reject
from kubealign_services.runtime.rpc.errors import InvalidRequest
from kubealign_services.scoring.group_requests import unpack_samples
from kubealign_services.telemetry.message_tracing import batch_spans
from kubealign_services.telemetry.rates import BusyShare, Rate
from kubealign_services.telemetry.span_status import mark_failed

#: Most rollouts that a worker pulls at a time: they are scored in one call.
MAX_PULL_COUNT = 64
_PULL_SECONDS = 5.0
#: After a pull of fewer rollouts than it may pull, a worker waits for more: this many times the duration of
#: its last call, and at most this many seconds. Calls for single samples would take the processor from the
#: rollout workers again and again.
_GATHERING_CALLS = 3.0
_MAX_GATHERING_SECONDS = 0.1

log = logging.getLogger(__name__)

#: Scores rollouts, one score each, in their order. The samples of a group follow one another.
Scorer = Callable[[Sequence[rollout_pb2.Rollout]], Awaitable[list[scoring_pb2.Score]]]


class ScoreWorker:
    """Shares the rollouts with all workers of the same consumer name; takes only those made for one of
    `purposes`.

    Each rollout is delivered to one of the workers. If that worker ends before the acknowledgement, the bus
    delivers the rollout to another one: at once if the worker was cancelled before it had the score.

    `running`: rollouts in progress.

    Args:
        pull_count: Most rollouts in one pull.
        prompts: Prompts whose rollouts are taken; None: those of all prompts.
    """

    def __init__(
        self,
        bus: Bus,
        consumer: str,
        purposes: frozenset[str],
        scorer: Scorer,
        pull_count: int = MAX_PULL_COUNT,
        prompts: Container[str] | None = None,
    ) -> None:
        self._bus = bus
        self._consumer = consumer
        self._purposes = purposes
        self._scorer = scorer
        self._pull_count = pull_count
        self._prompts = prompts
        self._fence = 0
        self.running = 0
        self._scored = 0
        self._rate = Rate()
        self._busy = BusyShare()
        # Duration of the last call of the scorer, in seconds.
        self._call_seconds = 0.0

    def heartbeat(self) -> dict[str, Any]:
        """Return the heartbeat payload: see docs/metrics.md."""
        return {
            "running": self.running,
            "scores_per_second": round(self._rate.per_second(self._scored), 2),
            "busy_share": round(self._busy.read_and_reset(), 3),
        }

    async def run(self) -> None:
        """Work until cancelled; several of them may run at the same time.

        Scores are published while the next rollouts are pulled and scored: a function that waits for another
        machine would otherwise be idle for the latency of the bus after each call.
        """
        settling: asyncio.Task[None] | None = None
        try:
            while True:
                deliveries = await self._gather()
                self.running += len(deliveries)
                async with (
                    _returned_when_cancelled(deliveries),
                    extend_ack_deadline(deliveries, self._bus.ack_wait),
                ):
                    scores = await self._score(deliveries)
                    if settling is not None:
                        await settling
                settling = asyncio.create_task(self._settle(deliveries, scores))
        finally:
            if settling is not None:
                settling.cancel()
                await asyncio.gather(settling, return_exceptions=True)

    async def _score(self, deliveries: Sequence[Delivery]) -> list[scoring_pb2.Score]:
        """Return the scores of the messages that can be read and that this worker takes."""
        decoded = [
            (await decode_or_reject(delivery, "rollouts", rollout_pb2.Rollout.FromString), delivery)
            for delivery in deliveries
        ]
        return await self._score_current(
            [(rollout, delivery.headers) for rollout, delivery in decoded if rollout is not None]
        )

    async def _settle(self, deliveries: Sequence[Delivery], scores: Sequence[scoring_pb2.Score]) -> None:
        """Publish scores, then acknowledge their rollouts."""
        async with extend_ack_deadline(deliveries, self._bus.ack_wait):
            # Published concurrently: storing a message is mostly latency.
            await asyncio.gather(*map(self._publish, scores))
        for delivery in deliveries:
            await delivery.ack()
        self.running -= len(deliveries)

    async def _gather(self) -> list[Delivery]:
        """Pull the rollouts that wait, or the first that arrives and those that follow it shortly."""
        deliveries = await self._bus.pull("rollouts", self._consumer, self._pull_count, _PULL_SECONDS)
        left = self._pull_count - len(deliveries)
        pause = min(_GATHERING_CALLS * self._call_seconds, _MAX_GATHERING_SECONDS)
        if deliveries and left and pause:
            async with _returned_when_cancelled(deliveries):
                await asyncio.sleep(pause)
                deliveries += await self._bus.pull("rollouts", self._consumer, left, 0.0)
        return deliveries

    async def _publish(self, score: scoring_pb2.Score) -> None:
        await self._bus.publish("scores", score.SerializeToString(), message_id(score))

    async def _score_current(
        self, messages: Sequence[tuple[rollout_pb2.Rollout, Mapping[str, str]]]
    ) -> list[scoring_pb2.Score]:
        """Score the rollouts of the newest fence that this worker takes.

        Args:
            messages: Rollouts, each with the headers of its message.
        """
        self._fence = max([self._fence, *(rollout.fence for rollout, _ in messages)])
        current = [
            (rollout, headers)
            for rollout, headers in messages
            if rollout.fence == self._fence
            and rollout.purpose in self._purposes
            and rollout.finish_reason != rollout_pb2.FINISH_REASON_FAILED
            # Last: only the prompts of these purposes are rows of the training data.
            and (self._prompts is None or rollout.group_id in self._prompts)
        ]
        if not current:
            return []
        started = time.monotonic()
        with (
            self._busy.measure(),
            batch_spans(
                "Score", "rollouts", [headers for _, headers in current], self._span_attributes
            ) as spans,
        ):
            scores = await self._score_valid([unpack_samples(rollout) for rollout, _ in current], spans)
        self._call_seconds = time.monotonic() - started
        self._scored += len(scores)
        return scores

    def _span_attributes(self, rollouts: int) -> dict[str, str | int]:
        return {"kubealign.scorer": self._consumer, "kubealign.rollouts": rollouts}

    async def _score_valid(
        self, messages: Sequence[Sequence[rollout_pb2.Rollout]], spans: Sequence[Span]
    ) -> list[scoring_pb2.Score]:
        """Score rollouts; those of a message that the scorer refuses have no score, and their group is
        requested again when it is overdue.

        Args:
            messages: Rollouts of each message: one, or all samples of a group.
            spans: Span of each message, which is marked if a rollout has no score or a failed one.
        """
        try:
            scores = await self._scorer([rollout for rollouts in messages for rollout in rollouts])
        except InvalidRequest as error:
            if len(messages) > 1:
                return [
                    score
                    for rollouts, span in zip(messages, spans, strict=True)
                    for score in await self._score_valid([rollouts], [span])
                ]
            log.error("refused a rollout", extra={"group": messages[0][0].group_id, "cause": str(error)})
            mark_failed(spans[0], type(error).__name__)
            return []
        owners = [span for rollouts, span in zip(messages, spans, strict=True) for _ in rollouts]
        # Not strict: a wrong number of scores must not raise here for the sake of the spans.
        for score, span in zip(scores, owners, strict=False):
            if score.error:
                mark_failed(span, "FailedScore")
        return scores


@asynccontextmanager
async def _returned_when_cancelled(deliveries: Sequence[Delivery]) -> AsyncIterator[None]:
    """Return the deliveries to the bus if the block is cancelled: another worker need not wait for them until
    their acknowledgement deadline.
    """
    try:
        yield
    except asyncio.CancelledError:
        # Some may have been rejected, or the connection lost: the deadline covers what cannot be returned.
        await asyncio.gather(*(delivery.retry() for delivery in deliveries), return_exceptions=True)
        raise


def empty_score(rollout: rollout_pb2.Rollout, source: str, worker: str) -> scoring_pb2.Score:
    """Return an empty score that identifies its rollout."""
    return scoring_pb2.Score(
        fence=rollout.fence,
        group_id=rollout.group_id,
        attempt=rollout.attempt,
        sample=rollout.sample,
        digest=rollout.sequence.digest,
        source=source,
        worker=worker,
    )


def read_reward(score: scoring_pb2.Score) -> float | None:
    """Return the reward of a score; None where the reward does not apply to the rollout."""
    return score.reward if score.HasField("reward") else None


def read_explanations(scores: Iterable[scoring_pb2.Score]) -> dict[str, str]:
    """Return source -> explanation of the scores of one rollout, for those that have one."""
    return {score.source: score.explanation for score in scores if score.explanation}


def message_id(score: scoring_pb2.Score) -> str:
    """Return the deduplication id: equal for every copy of a score, so that the bus keeps the first."""
    return f"{score.fence}:{score.source}:{score.group_id}:{score.attempt}:{score.sample}:{score.digest}"
