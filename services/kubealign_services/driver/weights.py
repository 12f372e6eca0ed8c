"""Weight synchronisation: policies that decide when new weights reach the rollout workers."""

import asyncio
from typing import Protocol

from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.snapshots import Snapshots
from kubealign_services.driver.watched import unless
from kubealign_services.refit.broadcast import RefitReport, WeightsBroadcast


class Weights(Protocol):
    """Policy that publishes weights to a job's rollout workers."""

    async def publish(self, version: int) -> None:
        """Publish a version and wait for the quorum. Raises RefitFailed."""

    async def released(self, step: StepFigures) -> None:
        """Wait until the trainer may change its weights. Raises RefitFailed."""

    async def publish_soon(self, version: int, step: StepFigures) -> None:
        """Publish a version in the background. Raises RefitFailed for the previous version."""

    async def ensure(self, version: int) -> None:
        """Wait until a quorum has this version, publishing it if necessary."""

    async def proven(self, version: int) -> None:
        """Wait until a quorum computes with this version, which may then be saved in a checkpoint. Raises
        RefitFailed.
        """

    async def broken(self) -> None:
        """Wait for a refit in progress to fail, and raise its error."""


class NoWeights:
    """No synchronisation: a job without rollout workers."""

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
    """On-policy synchronisation after each step.

    The trainer waits for the quorum of every version. On policy this costs no time, and a refit that lost
    its quorum fails before anything is trained on it.
    """

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
        # A refit that failed, or never began because the loop was cancelled, verifies nothing.
        if self._broadcast.reached != version:
            await self._broadcast.publish(version)

    async def broken(self) -> None:
        await self._broadcast.broken()

    async def _settled(self, step: StepFigures) -> None:
        """Wait for the refit in progress and add its metrics to the step."""
        with step.phase("wait_refit"):
            await self.proven(step.step - 1)
        if self._report is not None:
            # Reported only now: workers beyond the quorum acknowledged during this step's generation.
            step.add(self._report.metrics())
        self._report = None


class Behind(EveryStep):
    """Asynchronous synchronisation: the trainer continues while workers still fetch the last version.

    For jobs whose samples may be stale. The trainer waits for the previous version when it has the next
    one to publish. Samples that need a version wait for that version on the workers.
    """

    def __init__(self, broadcast: WeightsBroadcast, snapshots: Snapshots) -> None:
        """Set up the policy.

        Args:
            snapshots: Publisher that the broadcast uses.
        """
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
    """On-demand synchronisation: a version is published only when it is to be sampled from."""

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
        """Publish the version if necessary and return the digest of its weights."""
        await self.ensure(version)
        return self._broadcast.digest

    async def proven(self, version: int) -> None:
        return None

    async def broken(self) -> None:
        await self._broadcast.broken()
