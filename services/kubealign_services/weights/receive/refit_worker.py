"""Refit loop of a rollout worker: loads each announced version, verifies it with the canary, and acknowledges
it.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from torch import Tensor

from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.messaging.contract import Bus, BusUnavailable
from kubealign_services.messaging.decoding import decode_latest
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.rpc.errors import OutOfOrder
from kubealign_services.weights.announce.announcement import decode_announcement
from kubealign_services.weights.announce.manifest import describe_weights
from kubealign_services.weights.receive.part_fetcher import VerificationFailed
from kubealign_services.weights.receive.receiver import WeightsReceiver, WeightsTransfer
from kubealign_services.weights.verify.canary import mean_logprob_gap

log = logging.getLogger(__name__)


class CanaryMismatch(RuntimeError):
    """The receiver computes other log-probabilities with the weights than their sender."""


class Quarantined(OutOfOrder):
    """The last refit failed: the worker generates nothing until one succeeds. Names the cause."""


class RefitTarget(Protocol):
    """Engine that receives weights. It generates no token while `paused` is open."""

    def paused(self, in_flight: InFlightPolicy) -> AbstractAsyncContextManager[None]:
        """Pause generation; see `Generator.paused`."""

    async def refit(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Load the tensors.

        The tensors are invalid afterwards, so copy them, or keep views when `AssembledTensors.lasts`.
        Raises ValueError for names or shapes that do not match the model.
        """

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        """Merge an adapter into the weights of the last `refit`, replacing any earlier adapter.

        Raises ValueError like `refit`.
        """

    async def hold_output_until(self, proof: asyncio.Future[None]) -> None:
        """Hold back output until the verification completes; see `Generator.hold_output_until`."""

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Return the log-probability of each token after the first, at temperature 1."""


class RefitWorker:
    """Keeps one target at the newest weights.

    Attributes:
        current: Weights of the target, which have passed the canary; None before the first and while they
            change. Their checksums may still be computed: until then the target holds back its output.
        quarantined: True after a failed refit, until one succeeds; `quarantine_reason` names the cause.
        last_ack: Acknowledgement of the last refit.

    Args:
        timeout: Seconds for one refit.
    """

    def __init__(
        self,
        name: str,
        bus: Bus,
        receiver: WeightsReceiver,
        target: RefitTarget,
        timeout: float,
        in_flight: InFlightPolicy = InFlightPolicy.DRAIN,
    ) -> None:
        self._in_flight = in_flight
        self.current: batch_pb2.WeightsId | None = None
        self.quarantine_reason = ""
        self.last_ack: refit_pb2.RefitAcknowledgement | None = None
        self._name = name
        self._bus = bus
        self._receiver = receiver
        self._target = target
        self._timeout = timeout
        self._fence = 0
        self._phase = ""
        # While running samples finish, no new ones start: otherwise a busy target would never become idle.
        self._draining = False
        self._condition = asyncio.Condition()
        self._latest_announcement: refit_pb2.WeightsAnnouncement | None = None
        # One refit at a time: announced weights, and the restoration of lost ones.
        self._refit_lock = asyncio.Lock()

    @property
    def quarantined(self) -> bool:
        return bool(self.quarantine_reason)

    async def run(self) -> None:
        """Process announcements until the bus is closed.

        A failed refit is acknowledged with its error, and the loop continues.
        """
        async for data in self._bus.latest("refit"):
            announcement = decode_latest(self._bus, "refit", data, decode_announcement)
            if announcement is not None:
                self._latest_announcement = announcement
                await self._refit_and_acknowledge(announcement)

    @property
    def lacks_weights(self) -> bool:
        """True when weights were announced that the target does not hold."""
        return self._latest_announcement is not None and (self.current is None or self.quarantined)

    async def mark_weights_lost(self, cause: str) -> None:
        """Record that the target has lost its weights.

        Quarantines the worker if weights were announced, so that there is a version to restore.
        """
        async with self._refit_lock:
            self.current = None
            if self._latest_announcement is not None:
                self.quarantine_reason = cause
            await self._notify()

    async def retry(self) -> None:
        """Load the newest announced weights again, if the target does not hold them."""
        if self._latest_announcement is not None:
            await self._refit_and_acknowledge(self._latest_announcement)

    async def _refit_and_acknowledge(self, announcement: refit_pb2.WeightsAnnouncement) -> None:
        async with self._refit_lock:
            await self._acknowledge(await self._refit_to(announcement))

    async def wait_for_version(self, fence: int, version: int, timeout: float) -> None:
        """Return once the target holds these weights or later ones of the same fence, and no refit is
        draining it.

        Raises:
            StaleFence: The fence is older than one seen.
            Quarantined: At once, while the worker is quarantined.
            TimeoutError: Names the present weights.
        """

        def ready() -> bool:
            if fence < self._fence:
                raise StaleFence(f"fence {fence} has been replaced by {self._fence}")
            weights = self.current
            if self.quarantined:
                raise Quarantined(f"this worker is quarantined: {self.quarantine_reason}")
            if weights is None or self._draining:
                return False
            return (weights.fence, weights.version) >= (fence, version)

        try:
            async with asyncio.timeout(timeout), self._condition:
                await self._condition.wait_for(ready)
        except TimeoutError:
            present = describe_weights(self.current) if self.current is not None else "no verified weights"
            raise TimeoutError(
                f"version {version} of fence {fence} had not arrived after {timeout:g} s; "
                f"the worker has {present}"
            ) from None

    async def wait_until_released(self) -> None:
        """Return once the worker is not quarantined, so that a worker that cannot work leaves the work to
        others.
        """
        async with self._condition:
            await self._condition.wait_for(lambda: not self.quarantined)

    async def _refit_to(self, announcement: refit_pb2.WeightsAnnouncement) -> refit_pb2.RefitAcknowledgement:
        weights = announcement.weights
        answer = refit_pb2.RefitAcknowledgement(worker=self._name, weights=weights)
        if weights.fence < self._fence:
            answer.error = f"fence {weights.fence} has been replaced by {self._fence}"
            return answer
        self._fence = weights.fence
        await self._notify()
        if self.current == weights and not self.quarantined:
            return answer
        start = time.monotonic()
        deadline = asyncio.timeout(self._timeout)
        try:
            failpoint(Failpoint.WEIGHTS_BEFORE_APPLY)
            async with deadline:
                try:
                    await self._refit(
                        announcement, self._receiver.fetch_before_verification(announcement), answer
                    )
                except VerificationFailed as error:
                    log.warning("corrupt weights are fetched again", extra={"cause": str(error)})
                    await self._refit(announcement, self._receiver.fetch(announcement), answer)
            failpoint(Failpoint.WEIGHTS_AFTER_APPLY)
        except Exception as error:
            answer.error = f"{type(error).__name__}: {error}"
            if deadline.expired():
                answer.error = f"not done within {self._timeout:g} s: still waiting for {self._phase}"
            log.exception("refit failed", extra={"weights": describe_weights(weights), "cause": answer.error})
        self._draining = False
        answer.seconds = time.monotonic() - start
        self.quarantine_reason = answer.error
        self.last_ack = answer
        await self._notify()
        return answer

    async def _notify(self) -> None:
        async with self._condition:
            self._condition.notify_all()

    async def _refit(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        fetching: AbstractAsyncContextManager[WeightsTransfer],
        answer: refit_pb2.RefitAcknowledgement,
    ) -> None:
        self._phase = "the bytes"
        async with fetching as transfer:
            answer.transport = transfer.transport
            answer.received_bytes = transfer.received_bytes
            answer.delta_parts = transfer.delta_parts
            self._phase = "running samples to finish"
            # Paused samples need no draining: new samples may start until the pause.
            self._draining = self._in_flight is InFlightPolicy.DRAIN
            try:
                async with self._target.paused(self._in_flight):
                    await self._load_into_target(announcement, transfer, answer)
                    self.current = announcement.weights
            except CanaryMismatch:
                # Corrupt bytes, if any, are the actual cause.
                await asyncio.shield(transfer.verification)
                raise
            self._draining = False
            await self._notify()
            self._phase = "the checksums"
            try:
                await asyncio.shield(transfer.verification)
            except BaseException:
                self.current = None
                raise

    async def _load_into_target(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        transfer: WeightsTransfer,
        answer: refit_pb2.RefitAcknowledgement,
    ) -> None:
        """Load the weights into the target and check the canary.

        Raises CanaryMismatch, SnapshotGone, and exceptions of the target.
        """
        canary, version = announcement.canary, announcement.weights.version
        # Check before the first tensor changes: a missing snapshot then leaves the target's weights intact.
        transfer.check_valid()
        self.current = None
        self._phase = "the weights to be copied"
        if announcement.HasField("adapter"):
            await self._target.adapt(transfer.tensors, announcement.adapter.scale, version, self._in_flight)
        else:
            await self._target.refit(transfer.tensors, version, self._in_flight)
        transfer.check_valid()
        self._phase = "the canary's log-probabilities"
        logprobs = await self._target.sequence_logprobs(list(canary.tokens))
        answer.canary_gap = mean_logprob_gap(canary.logprobs, logprobs)
        if not answer.canary_gap <= canary.tolerance:
            raise CanaryMismatch(
                f"the canary's log-probabilities differ by {answer.canary_gap:.3g} nats on average from the "
                f"sender's, more than {canary.tolerance:g}"
            )
        self._phase = "the checksums"
        await self._target.hold_output_until(transfer.verification)

    async def _acknowledge(self, answer: refit_pb2.RefitAcknowledgement) -> None:
        try:
            await self._bus.publish("refit-acks", answer.SerializeToString(), uuid.uuid4().hex)
        except BusUnavailable as error:
            # The sender counts this worker as absent, which is correct.
            log.warning("a refit could not be acknowledged", extra={"cause": str(error)})
