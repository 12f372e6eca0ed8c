"""Driver side of the weight sync (refit): asks the trainer to publish, announces the version, and waits for
the quorum of rollout workers.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kubealign.v1 import refit_pb2
from kubealign_services.messaging.contract import Bus, BusUnavailable
from kubealign_services.messaging.fenced_receiver import pull_for_fence
from kubealign_services.weights.announce.announcement import AnnouncementTooLarge, encode_announcement
from kubealign_services.weights.announce.manifest import describe_weights
from kubealign_services.weights.announce.quorum import Quorum, QuorumVerdict

_PULL_COUNT = 64
_PULL_SECONDS = 2.0
_ATTEMPTS = 2
# A worker that missed this many announcements counts as gone.
_MAX_MISSED_ANNOUNCEMENTS = 3

log = logging.getLogger(__name__)

#: (fence, version) -> announcement of the weights that the trainer serves.
PublishWeights = Callable[[int, int], Awaitable[refit_pb2.WeightsAnnouncement]]


class RefitFailed(RuntimeError):
    """Fewer rollout workers than rollout.minReplicas have the weights after one full retry.

    Names the workers and causes. A new attempt may succeed: a stopped process answers again, or is restarted.
    """


class RefitImpossible(RefitFailed):
    """The announcement of the weights exceeds the largest message, so that no attempt can succeed."""


@dataclass(frozen=True)
class RefitReport:
    """Result of one version's refit.

    seconds: from asking the trainer until the quorum. snapshot_seconds: until the trainer answered.
    committed: also grows with acknowledgements after the quorum, until the next version is announced.
    """

    version: int
    seconds: float
    snapshot_seconds: float
    size_bytes: int
    retries: int
    committed: dict[str, refit_pb2.RefitAcknowledgement]
    quarantined: frozenset[str]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the refit for the step's metrics."""
        answers = self.committed.values()
        transports = [answer.transport for answer in answers]
        return {
            "weights/version": float(self.version),
            "seconds/refit": self.seconds,
            "refit/snapshot_seconds": self.snapshot_seconds,
            "refit/bytes": float(self.size_bytes),
            "refit/received_bytes": float(sum(answer.received_bytes for answer in answers)),
            "refit/retries": float(self.retries),
            "refit/workers": float(len(self.committed)),
            "refit/shared_memory_workers": float(transports.count("shared_memory")),
            "refit/stream_workers": float(transports.count("stream")),
            "refit/collective_workers": float(transports.count("collective")),
            "refit/delta_workers": float(sum(answer.delta_parts > 0 for answer in answers)),
            "refit/quarantined_workers": float(len(self.quarantined)),
            "refit/canary_gap": max((answer.canary_gap for answer in answers), default=0.0),
        }


class RefitCoordinator:
    """Publishes weight versions under one fence, one at a time.

    Used as a context manager, which ends its tasks.

    Attributes:
        quarantined: Workers whose last acknowledgement was a failure or missed a deadline, unless they are
            known to have left.
        proven_version: Newest version that reached its quorum.

    Args:
        publish: Asks the trainer to publish a version.
        min_replicas: Workers that must have the weights.
        replicas: Workers that are meant to run.
        timeout: Seconds for the trainer's snapshot, and again for the quorum.
    """

    def __init__(
        self,
        bus: Bus,
        publish: PublishWeights,
        *,
        fence: int,
        min_replicas: int,
        replicas: int | None = None,
        timeout: float,
    ) -> None:
        self.quarantined: frozenset[str] = frozenset()
        self.proven_version: int | None = None
        self._bus = bus
        self._publish = publish
        self._fence = fence
        self._min_replicas = min_replicas
        self._replicas = min_replicas if replicas is None else replicas
        self._timeout = timeout
        # Worker -> number of the announcement, from 1, that it acknowledged last.
        self._last_heard: dict[str, int] = {}
        self._silent: frozenset[str] = frozenset()
        self._announcement_count = 0
        self._quorum: Quorum | None = None
        self._progress = asyncio.Event()
        self._ack_collector: asyncio.Task[None] | None = None
        self._announcer: asyncio.Task[None] | None = None
        self._announcement: refit_pb2.WeightsAnnouncement | None = None
        # Held while publishing, so that the newest announcement is the last one on the bus.
        self._announce_lock = asyncio.Lock()
        self._publication: asyncio.Task[RefitReport] | None = None
        self._report: RefitReport | None = None
        self._closing = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def digest(self) -> str:
        """Digest of the newest announced weights; empty before the first announcement."""
        return "" if self._announcement is None else self._announcement.weights.digest

    async def publish(self, version: int) -> RefitReport:
        """Announce a version and wait for its quorum, with one full retry.

        Raises RefitFailed, and any exception of the trainer's `publish` or the bus.
        """
        if self._publication is not None and asyncio.current_task() is not self._publication:
            await self.wait_current()
        ack_task = self._ack_task()
        start = time.monotonic()
        causes = []
        for attempt in range(_ATTEMPTS):
            announcement = await self._request_snapshot(version)
            snapshot_seconds = time.monotonic() - start
            quorum = self._start_quorum(announcement)
            self._announcement = announcement
            await self._announce()
            announced = time.monotonic()
            if await self._wait_for_verdict(quorum, ack_task) is QuorumVerdict.REACHED:
                self.proven_version = version
                self._report = RefitReport(
                    version=version,
                    seconds=time.monotonic() - start,
                    snapshot_seconds=snapshot_seconds,
                    size_bytes=announcement.size_bytes,
                    retries=attempt,
                    committed=quorum.committed,
                    quarantined=self.quarantined,
                )
                return self._report
            causes.append(quorum.failure_reasons(time.monotonic() - announced))
            log.warning("a refit lost its quorum", extra={"version": version, "cause": causes[-1]})
        raise RefitFailed(
            f"weights {describe_weights(announcement.weights)} reached {len(quorum.committed)} "
            f"rollout workers, rollout.minReplicas is {self._min_replicas}. "
            f"First try: {causes[0]}. Second try: {causes[1]}"
        )

    def publish_in_background(self, version: int) -> None:
        """Start to publish in the background; `wait_current` returns the result.

        Raises RuntimeError while another publication is in progress.
        """
        if self._publication is not None:
            raise RuntimeError(f"version {version} cannot be published before the last one is complete")
        self._publication = asyncio.create_task(self.publish(version), name=f"refit {version}")
        self._publication.add_done_callback(self._on_publish_done)

    def _on_publish_done(self, ended: asyncio.Task[RefitReport]) -> None:
        error = None if ended.cancelled() else ended.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)
            # Mark the exception as retrieved: perhaps no caller waits for it.
            self._failure.exception()

    async def wait_for_failure(self) -> None:
        """Wait for a background publication to fail, also while no caller awaits `wait_current`.

        Raises its exception.
        """
        await asyncio.shield(self._failure)

    async def wait_current(self) -> RefitReport | None:
        """Wait for the publication in progress.

        Returns the report of the last publication, once. Raises its exception.
        """
        if self._publication is not None:
            try:
                await asyncio.shield(self._publication)
            finally:
                if self._publication.done():
                    self._publication = None
        report, self._report = self._report, None
        return report

    async def _request_snapshot(self, version: int) -> refit_pb2.WeightsAnnouncement:
        try:
            async with asyncio.timeout(self._timeout):
                return await self._publish(self._fence, version)
        except TimeoutError as error:
            raise RefitFailed(
                f"the trainer had not published version {version} after {self._timeout:g} s"
            ) from error

    async def _announce(self) -> None:
        """Put the newest announcement on the bus."""
        async with self._announce_lock:
            assert self._announcement is not None
            try:
                data = encode_announcement(self._announcement, self._bus.max_payload)
            except AnnouncementTooLarge as error:
                raise RefitImpossible(str(error)) from error
            await self._bus.publish("refit", data, uuid.uuid4().hex)

    async def _reannounce_after_loss(self, losses: AsyncIterator[None]) -> None:
        """Repeat the announcement after a data loss of the bus, for workers that join later and workers whose
        acknowledgement was lost.
        """
        async for _ in losses:
            if self._announcement is not None:
                log.warning("the bus has lost the weights announcement; announcing again")
                try:
                    await self._announce()
                except BusUnavailable as error:
                    log.warning("the announcement could not be repeated", extra={"cause": str(error)})

    def _start_quorum(self, announcement: refit_pb2.WeightsAnnouncement) -> Quorum:
        self._announcement_count += 1
        self._forget_workers(
            {
                worker
                for worker, last in self._last_heard.items()
                if last < self._announcement_count - _MAX_MISSED_ANNOUNCEMENTS
            }
        )
        known_workers = frozenset(self._last_heard) - self._silent
        self._quorum = Quorum(announcement.weights, self._min_replicas, self._replicas, known_workers)
        self._progress.clear()
        return self._quorum

    async def _wait_for_verdict(self, quorum: Quorum, ack_task: asyncio.Task[None]) -> QuorumVerdict:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while (verdict := quorum.verdict(loop.time() >= deadline)) is QuorumVerdict.WAITING:
            progress = asyncio.create_task(self._progress.wait())
            try:
                left = deadline - loop.time()
                await asyncio.wait({progress, ack_task}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                progress.cancel()
            if ack_task.done():
                ack_task.result()
            self._progress.clear()
        if verdict is QuorumVerdict.LOST:
            # Silent workers are not waited for again.
            self._silent |= quorum.absent
            self.quarantined |= quorum.absent
        return verdict

    def _forget_workers(self, gone: set[str]) -> None:
        """Remove workers that have left; every worker has a name of its own."""
        for worker in gone:
            del self._last_heard[worker]
        self._silent -= gone
        self.quarantined -= gone

    def _ack_task(self) -> asyncio.Task[None]:
        if self._ack_collector is None:
            raise RuntimeError("RefitCoordinator must be used as a context manager: async with coordinator")
        return self._ack_collector

    async def _collect_acks(self) -> None:
        # A flag besides the cancellation, which Python before 3.12 can swallow when a message arrives.
        while not self._closing:
            acknowledgements = await pull_for_fence(
                self._bus,
                "refit-acks",
                self._fence,
                refit_pb2.RefitAcknowledgement.FromString,
                lambda acknowledgement: acknowledgement.weights.fence,
                count=_PULL_COUNT,
                timeout=_PULL_SECONDS,
            )
            for acknowledgement, delivery in acknowledgements:
                self._on_ack(acknowledgement)
                await delivery.ack()

    def _on_ack(self, answer: refit_pb2.RefitAcknowledgement) -> None:
        if answer.weights.fence != self._fence:
            return
        self._last_heard[answer.worker] = self._announcement_count
        self._silent -= {answer.worker}
        self.quarantined = (
            self.quarantined | {answer.worker} if answer.error else self.quarantined - {answer.worker}
        )
        if answer.error:
            extra = {"worker": answer.worker, "cause": answer.error}
            log.warning("a worker failed to load weights", extra=extra)
        if self._quorum is not None and self._quorum.add_ack(answer):
            self._progress.set()

    async def __aenter__(self) -> Self:
        await self._bus.purge("refit-acks")
        # The pulls of the acknowledgements detect a data loss.
        losses = self._bus.watch_data_loss("refit-acks")
        self._ack_collector = asyncio.create_task(self._collect_acks(), name="refit acknowledgements")
        self._announcer = asyncio.create_task(self._reannounce_after_loss(losses), name="refit announcements")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        tasks = [
            task for task in (self._publication, self._ack_collector, self._announcer) if task is not None
        ]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("a refit in progress failed", extra={"cause": str(result)})
