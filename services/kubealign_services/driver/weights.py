"""New weights for the rollout workers: after each step, or when validation wants to sample."""

import asyncio
from typing import Protocol

from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.snapshots import Snapshots
from kubealign_services.driver.watched import unless
from kubealign_services.refit.broadcast import RefitReport, WeightsBroadcast


class Weights(Protocol):
    """How a job's rollout workers get weights."""

    async def publish(self, version: int) -> None:
        """Publish and wait for the quorum. Raises RefitFailed."""

    async def released(self, step: StepFigures) -> None:
        """Return once the trainer may change its weights. Raises RefitFailed."""

    async def publish_soon(self, version: int, step: StepFigures) -> None:
        """Publish while the driver goes on. Raises RefitFailed, of the version before."""

    async def ensure(self, version: int) -> None:
        """Return once a quorum has this version."""

    async def proven(self, version: int) -> None:
        """Return once a quorum computes with this version: then it is fit to be committed. Raises
        RefitFailed."""

    async def broken(self) -> None:
        """Wait for a refit under way to fail, whatever else is being waited for. Raises what it raised."""


class NoWeights:
    """A job without rollout workers."""

    async def publish(self, version: int) -> None:
        return None

    async def released(self, step: StepFigures) -> None:
        return None

    async def publish_soon(self, version: int, step: StepFigures) -> None:
        return None

    async def ensure(self, version: int) -> None:
        raise LookupError("this job has no rollout workers")

    async def proven(self, version: int) -> None:
        return None

    async def broken(self) -> None:
        await asyncio.Event().wait()


class EveryStep:
    """Every version goes out, and the trainer waits for its quorum: on policy nothing is lost by that, and a
    refit that lost its quorum surfaces before anything is trained on it."""

    def __init__(self, broadcast: WeightsBroadcast) -> None:
        self._broadcast = broadcast
        self._report: RefitReport | None = None

    async def publish(self, version: int) -> None:
        await self._broadcast.publish(version)

    async def released(self, step: StepFigures) -> None:
        await self._settled(step)

    async def publish_soon(self, version: int, step: StepFigures) -> None:
        self._broadcast.publish_soon(version)

    async def ensure(self, version: int) -> None:
        await self.proven(version)

    async def proven(self, version: int) -> None:
        self._report = await self._broadcast.settled() or self._report
        # One that failed, or that never began because the loop was broken off, proves nothing.
        if self._broadcast.reached != version:
            await self._broadcast.publish(version)

    async def broken(self) -> None:
        await self._broadcast.broken()

    async def _settled(self, step: StepFigures) -> None:
        """Wait for the refit under way and note its figures."""
        with step.phase("wait_refit"):
            await self.proven(step.step - 1)
        if self._report is not None:
            # Only now: workers beyond the quorum have answered while this step's samples were made.
            step.add(self._report.metrics())
        self._report = None


class Behind(EveryStep):
    """Every version goes out, but the trainer makes the next one while the workers still take it:
    asynchronous jobs, whose samples may be older. It waits for the one before when it has the next to give. A
    version whose samples are needed is waited for where the samples are."""

    def __init__(self, broadcast: WeightsBroadcast, snapshots: Snapshots) -> None:
        """snapshots: what the broadcast publishes by."""
        super().__init__(broadcast)
        self._snapshots = snapshots

    async def released(self, step: StepFigures) -> None:
        with step.phase("wait_refit"):
            await unless(self._snapshots.release(), self._broadcast.broken())

    async def publish_soon(self, version: int, step: StepFigures) -> None:
        await self._settled(step)
        self._snapshots.expect(version)
        self._broadcast.publish_soon(version)


class OnDemand:
    """Rollout workers that sample now and then: a version goes out when it is to be sampled from."""

    def __init__(self, broadcast: WeightsBroadcast) -> None:
        self._broadcast = broadcast
        self._published: int | None = None

    async def publish(self, version: int) -> None:
        return None

    async def released(self, step: StepFigures) -> None:
        return None

    async def publish_soon(self, version: int, step: StepFigures) -> None:
        return None

    async def ensure(self, version: int) -> None:
        if self._published != version:
            await self._broadcast.publish(version)
            self._published = version

    async def digest(self, version: int) -> str:
        """As `ensure`; the digest of the weights."""
        await self.ensure(version)
        return self._broadcast.digest

    async def proven(self, version: int) -> None:
        return None

    async def broken(self) -> None:
        await self._broadcast.broken()
