"""The receiver's loop: takes each announced version, proves it with the canary, and says so."""

import asyncio
import logging
import time
import uuid
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from torch import Tensor

from kubealign.spec.rollout import InFlight
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.bus.contract import Bus, BusUnavailable
from kubealign_services.refit.announcing import from_the_bus
from kubealign_services.refit.canary import gap
from kubealign_services.refit.manifest import identity
from kubealign_services.refit.part_fetch import DisprovenTransfer
from kubealign_services.refit.receiver import Transfer, WeightsReceiver
from kubealign_services.rpc.errors import OutOfOrder, StaleFence

log = logging.getLogger(__name__)


class CanaryMismatch(RuntimeError):
    """The receiver computes something else with the weights than their sender does."""


class Quarantined(OutOfOrder):
    """The last refit failed: nothing is generated until one succeeds. Says why it failed."""


class RefitTarget(Protocol):
    """What is refitted: an engine that makes no token while `quiet` is held."""

    def quiet(self, in_flight: InFlight) -> AbstractAsyncContextManager[None]:
        """As `Generator.quiet`."""

    async def refit(
        self, tensors: Iterable[tuple[str, Tensor]], version: int, in_flight: InFlight = InFlight.DRAIN
    ) -> None:
        """Take the tensors: copy them, since they are not valid afterwards, or keep views of them where they
        say that they last (`Assembled.lasts`). Raises ValueError for names or shapes that do not fit.
        """

    async def adapt(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        scale: float,
        version: int,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        """Merge an adapter into the weights of the last `refit`, in the place of any before it. Raises
        ValueError as `refit` does."""

    async def proven_by(self, proof: asyncio.Future[None]) -> None:
        """As `Generator.proven_by`."""

    async def sequence_logprobs(self, tokens: list[int]) -> list[float]:
        """Log-probability of each token after the first, at temperature 1."""


class RefitWorker:
    """Keeps one target at the newest weights.

    current: the weights that the target holds, which have passed the canary; None while there are none, or
    while they change. Their checksums may still be computed: until then the target hands nothing out.
    quarantined: after a failed refit, until one succeeds; `cause` says why. timeout: seconds for one refit.
    last: how the last refit went.
    """

    def __init__(
        self,
        name: str,
        bus: Bus,
        receiver: WeightsReceiver,
        target: RefitTarget,
        timeout: float,
        in_flight: InFlight = InFlight.DRAIN,
    ) -> None:
        self._in_flight = in_flight
        self.current: batch_pb2.WeightsId | None = None
        self.cause = ""
        self.last: refit_pb2.RefitAcknowledgement | None = None
        self._name = name
        self._bus = bus
        self._receiver = receiver
        self._target = target
        self._timeout = timeout
        self._fence = 0
        self._phase = ""
        # While what runs finishes, nothing new begins: else a busy target would never be idle.
        self._draining = False
        self._change = asyncio.Condition()
        self._newest: refit_pb2.WeightsAnnouncement | None = None
        # One at a time: announced weights, and those that a target which lost them gets again.
        self._taking = asyncio.Lock()

    @property
    def quarantined(self) -> bool:
        return bool(self.cause)

    async def run(self) -> None:
        """Take announcements until the bus is closed. A refit that fails is told, and the loop goes on."""
        async for data in self._bus.latest("refit"):
            self._newest = from_the_bus(data)
            await self._take_newest(self._newest)

    @property
    def lacks_weights(self) -> bool:
        """Whether weights were announced that the target does not hold."""
        return self._newest is not None and (self.current is None or self.quarantined)

    async def lose(self, cause: str) -> None:
        """The target holds nothing any more: it is quarantined, where there is something to get again."""
        async with self._taking:
            self.current = None
            if self._newest is not None:
                self.cause = cause
            await self._changed()

    async def take_again(self) -> None:
        """Take the newest announced weights, if the target does not hold them."""
        if self._newest is not None:
            await self._take_newest(self._newest)

    async def _take_newest(self, announcement: refit_pb2.WeightsAnnouncement) -> None:
        async with self._taking:
            await self._acknowledge(await self._take(announcement))

    async def wait_for(self, fence: int, version: int, timeout: float) -> None:
        """Return once the target holds these weights or later ones of the same fence, and is not being
        refitted.

        Raises StaleFence for a fence older than one seen; Quarantined, at once; TimeoutError saying what
        there is.
        """

        def ready() -> bool:
            if fence < self._fence:
                raise StaleFence(f"fence {fence} has been replaced by {self._fence}")
            held = self.current
            if self.quarantined:
                raise Quarantined(f"this worker is quarantined: {self.cause}")
            if held is None or self._draining:
                return False
            return (held.fence, held.version) >= (fence, version)

        try:
            async with asyncio.timeout(timeout), self._change:
                await self._change.wait_for(ready)
        except TimeoutError:
            held = identity(self.current) if self.current is not None else "no verified weights"
            raise TimeoutError(
                f"version {version} of fence {fence} had not come after {timeout:g} s; there is {held}"
            ) from None

    async def released(self) -> None:
        """Return once it is not quarantined: a worker that cannot work leaves the work to others."""
        async with self._change:
            await self._change.wait_for(lambda: not self.quarantined)

    async def _take(self, announcement: refit_pb2.WeightsAnnouncement) -> refit_pb2.RefitAcknowledgement:
        weights = announcement.weights
        answer = refit_pb2.RefitAcknowledgement(worker=self._name, weights=weights)
        if weights.fence < self._fence:
            answer.error = f"fence {weights.fence} has been replaced by {self._fence}"
            return answer
        self._fence = weights.fence
        await self._changed()
        if self.current == weights and not self.quarantined:
            return answer
        begun = time.monotonic()
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                try:
                    await self._refit(announcement, self._receiver.fetch_ahead(announcement), answer)
                except DisprovenTransfer as error:
                    log.warning("weights are fetched again", extra={"cause": str(error)})
                    await self._refit(announcement, self._receiver.fetch(announcement), answer)
        except Exception as error:
            answer.error = f"{type(error).__name__}: {error}"
            if deadline.expired():
                answer.error = f"not done within {self._timeout:g} s: still waiting for {self._phase}"
            log.exception("refit failed", extra={"weights": identity(weights), "cause": answer.error})
        self._draining = False
        answer.seconds = time.monotonic() - begun
        self.cause = answer.error
        self.last = answer
        await self._changed()
        return answer

    async def _changed(self) -> None:
        async with self._change:
            self._change.notify_all()

    async def _refit(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        fetching: AbstractAsyncContextManager[Transfer],
        answer: refit_pb2.RefitAcknowledgement,
    ) -> None:
        self._phase = "the bytes"
        async with fetching as transfer:
            answer.transport = transfer.transport
            answer.received_bytes = transfer.received_bytes
            answer.delta_parts = transfer.delta_parts
            self._phase = "running samples to finish"
            # What stands still needs no room: others may begin right until then.
            self._draining = self._in_flight is InFlight.DRAIN
            try:
                async with self._target.quiet(self._in_flight):
                    await self._give(announcement, transfer, answer)
                    self.current = announcement.weights
            except CanaryMismatch:
                # Where the bytes are corrupt, that is the cause.
                await asyncio.shield(transfer.proof)
                raise
            self._draining = False
            await self._changed()
            self._phase = "the checksums"
            try:
                await asyncio.shield(transfer.proof)
            except BaseException:
                self.current = None
                raise

    async def _give(
        self,
        announcement: refit_pb2.WeightsAnnouncement,
        transfer: Transfer,
        answer: refit_pb2.RefitAcknowledgement,
    ) -> None:
        """Raises CanaryMismatch, SnapshotGone, and what the target does."""
        canary, version = announcement.canary, announcement.weights.version
        # Before the first tensor is touched: gone now leaves the target with the weights it has.
        transfer.confirm()
        self.current = None
        self._phase = "the weights to be copied"
        if announcement.HasField("adapter"):
            await self._target.adapt(transfer.tensors, announcement.adapter.scale, version, self._in_flight)
        else:
            await self._target.refit(transfer.tensors, version, self._in_flight)
        transfer.confirm()
        self._phase = "the canary's log-probabilities"
        logprobs = await self._target.sequence_logprobs(list(canary.tokens))
        answer.canary_gap = gap(canary.logprobs, logprobs)
        if not answer.canary_gap <= canary.tolerance:
            raise CanaryMismatch(
                f"the canary's log-probabilities differ by {answer.canary_gap:.3g} nats from the sender's, "
                f"more than {canary.tolerance:g}"
            )
        self._phase = "the checksums"
        await self._target.proven_by(transfer.proof)

    async def _acknowledge(self, answer: refit_pb2.RefitAcknowledgement) -> None:
        try:
            await self._bus.publish("refit-acks", answer.SerializeToString(), uuid.uuid4().hex)
        except BusUnavailable as error:
            # The sender counts this worker as absent, which is what it is.
            log.warning("a refit could not be acknowledged", extra={"cause": str(error)})
