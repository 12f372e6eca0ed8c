"""Weight synchronisation: policies that decide when new weights reach the rollout workers."""

import asyncio
from typing import Protocol

from kubealign.v1 import refit_pb2
from kubealign_services.roles.driver.cancellation import run_until_any
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.weights.announce.coordinator import PublishWeights, RefitCoordinator, RefitReport


class WeightSync(Protocol):
    """Policy that publishes weights to a job's rollout workers."""

    async def publish(self, version: int) -> None:
        """Publish a version and wait for the quorum. Raises RefitFailed."""

    async def wait_until_snapshot_taken(self, step: StepRecord) -> None:
        """Wait until the trainer may change its weights. Raises RefitFailed."""

    async def publish_in_background(self, version: int, step: StepRecord) -> None:
        """Publish a version in the background. Raises RefitFailed for the previous version."""

    async def ensure_published(self, version: int) -> None:
        """Wait until a quorum has this version, publishing it if necessary."""

    async def wait_for_quorum(self, version: int) -> None:
        """Wait until a quorum computes with this version, which may then be saved in a checkpoint.

        Raises RefitFailed.
        """

    async def wait_for_failure(self) -> None:
        """Wait for a refit in progress to fail, and raise its error."""


class NoSync:
    """No synchronisation: a job without rollout workers."""

    async def publish(self, version: int) -> None:
        return None

    async def wait_until_snapshot_taken(self, step: StepRecord) -> None:
        return None

    async def publish_in_background(self, version: int, step: StepRecord) -> None:
        return None

    async def ensure_published(self, version: int) -> None:
        raise LookupError("this job has no rollout workers")

    async def wait_for_quorum(self, version: int) -> None:
        return None

    async def wait_for_failure(self) -> None:
        await asyncio.Event().wait()


class SyncEveryStep:
    """On-policy synchronisation after each step.

    The trainer waits for the quorum of every version. On policy this costs no time, and a refit that lost
    its quorum fails before anything is trained on it.
    """

    def __init__(self, coordinator: RefitCoordinator) -> None:
        self._coordinator = coordinator
        self._report: RefitReport | None = None

    async def publish(self, version: int) -> None:
        await self._coordinator.publish(version)

    async def wait_until_snapshot_taken(self, step: StepRecord) -> None:
        await self._wait_for_refit(step)

    async def publish_in_background(self, version: int, step: StepRecord) -> None:
        self._coordinator.publish_in_background(version)

    async def ensure_published(self, version: int) -> None:
        await self.wait_for_quorum(version)

    async def wait_for_quorum(self, version: int) -> None:
        self._report = await self._coordinator.wait_current() or self._report
        # A refit that failed, or never began because the loop was cancelled, verifies nothing.
        if self._coordinator.proven_version != version:
            await self._coordinator.publish(version)

    async def wait_for_failure(self) -> None:
        await self._coordinator.wait_for_failure()

    async def _wait_for_refit(self, step: StepRecord) -> None:
        """Wait for the refit in progress and add its metrics to the step."""
        with step.phase("wait_refit"):
            await self.wait_for_quorum(step.step - 1)
        if self._report is not None:
            # Reported only now: workers beyond the quorum acknowledged during this step's generation.
            step.add(self._report.metrics())
        self._report = None


class SnapshotPublisher:
    """Publish function of a refit that requests snapshots until the trainer is released from a version.

    After the release the trainer has other weights, and a retry announces the same snapshot again, in
    full: the trainer serves a snapshot until it takes the second one after it.
    """

    def __init__(self, publish: PublishWeights) -> None:
        self._publish = publish
        self._latest: refit_pb2.WeightsAnnouncement | None = None
        self._released = False
        self._snapshot_taken = asyncio.Event()
        self._snapshot_taken.set()
        # Held during a snapshot request: the trainer is not released before it has replied.
        self._publish_lock = asyncio.Lock()

    async def __call__(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        """Return the announcement of a version, taking a snapshot unless the trainer was released from it."""
        async with self._publish_lock:
            latest = self._latest
            if self._released and latest is not None and latest.weights.version == version:
                return _without_delta(latest)
            self._latest = await self._publish(fence, version)
            self._released = False
            self._snapshot_taken.set()
            return self._latest

    def expect(self, version: int) -> None:
        """Delay the release of the trainer until it has taken the snapshot of this version."""
        if self._latest is None or self._latest.weights.version != version:
            self._snapshot_taken.clear()

    async def release(self) -> None:
        """Wait until the trainer may change its weights and no snapshot request is outstanding."""
        await self._snapshot_taken.wait()
        async with self._publish_lock:
            self._released = True


class AsyncSync(SyncEveryStep):
    """Asynchronous synchronisation: the trainer continues while workers still fetch the last version.

    For jobs whose samples may be stale. The trainer waits for the previous version when it has the next
    one to publish. Samples that need a version wait for that version on the workers.
    """

    def __init__(self, coordinator: RefitCoordinator, snapshots: SnapshotPublisher) -> None:
        """Set up the policy.

        Args:
            snapshots: Publisher that the coordinator uses.
        """
        super().__init__(coordinator)
        self._snapshots = snapshots

    async def wait_until_snapshot_taken(self, step: StepRecord) -> None:
        with step.phase("wait_refit"):
            await run_until_any(self._snapshots.release(), self._coordinator.wait_for_failure())

    async def publish_in_background(self, version: int, step: StepRecord) -> None:
        await self._wait_for_refit(step)
        self._snapshots.expect(version)
        self._coordinator.publish_in_background(version)


class SyncOnDemand:
    """On-demand synchronisation: a version is published only when it is to be sampled from."""

    def __init__(self, coordinator: RefitCoordinator) -> None:
        self._coordinator = coordinator
        self._published_version: int | None = None

    async def publish(self, version: int) -> None:
        return None

    async def wait_until_snapshot_taken(self, step: StepRecord) -> None:
        return None

    async def publish_in_background(self, version: int, step: StepRecord) -> None:
        return None

    async def ensure_published(self, version: int) -> None:
        if self._published_version != version:
            await self._coordinator.publish(version)
            self._published_version = version

    async def publish_and_digest(self, version: int) -> str:
        """Publish the version if necessary and return the digest of its weights."""
        await self.ensure_published(version)
        return self._coordinator.digest

    async def wait_for_quorum(self, version: int) -> None:
        return None

    async def wait_for_failure(self) -> None:
        await self._coordinator.wait_for_failure()


def _without_delta(announcement: refit_pb2.WeightsAnnouncement) -> refit_pb2.WeightsAnnouncement:
    """Return the announcement without the fields that let a receiver fetch only a delta."""
    full = refit_pb2.WeightsAnnouncement()
    full.CopyFrom(announcement)
    full.ClearField("base")
    for part in full.parts:
        part.ClearField("delta_sizes")
    return full
