"""Uploads committed checkpoints beside training, and at the end the result.

Training never waits for the network: a checkpoint is committed on the volume, and its copy follows. Where
uploads are slower than checkpoints, those in between are left out, unless they are among the best by the
job's metric. While the store does not answer, the newest checkpoint waits, and its retries go on for as long
as the job does.
"""

import asyncio
import logging
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from kubealign.backoff import restart_backoff
from kubealign.checkpoint_pins import pinned_steps
from kubealign.object_storage.errors import StorageError
from kubealign.object_storage.folders import FolderFile
from kubealign.object_storage.results import result_name
from kubealign_services.checkpoints.remote.remote_run import (
    CHECKPOINTS,
    RESULTS,
    RemoteClaim,
    RemoteRun,
    score_labels,
)
from kubealign_services.checkpoints.remote.run_files import remove_snapshots, run_id, snapshot_files
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import StoredCheckpoint

log = logging.getLogger(__name__)


@dataclass
class UploadState:
    """State of the uploads, for metrics. step: step of the newest uploaded checkpoint, 0 before the first.

    committed_at: time of its commit (seconds since the epoch), that of the start before the first.
    """

    step: int = 0
    committed_at: float = field(default_factory=time.time)
    bytes: int = 0
    failures: int = 0

    def to_metrics(self) -> dict[str, float]:
        """Return the metrics of the uploads."""
        return {
            "checkpoint/uploaded_step": float(self.step),
            "checkpoint/upload_age_seconds": max(0.0, time.time() - self.committed_at),
            "checkpoint/uploaded_bytes": float(self.bytes),
            "checkpoint/upload_failures": float(self.failures),
        }


class CheckpointUploader:
    """Uploads checkpoints of a run directory, one after the other, while its context is open.

    It lives as long as the driver's process: an attempt that ends does not disturb an upload.

    Attributes:
        pinned: Folders of the checkpoints that are uploaded or wait for it, which must not be deleted.
    """

    def __init__(self, remote: RemoteRun, run_dir: Path, retention: RetentionPolicy) -> None:
        self.state = UploadState()
        self.pinned: set[Path] = set()
        self._remote = remote
        self._run_dir = run_dir
        self._retention = retention
        self._claim: RemoteClaim | None = None
        self._claimed: RemoteClaim | None = None
        #: Checkpoints that wait for their upload, oldest first.
        self._waiting: list[StoredCheckpoint] = []
        self._current: StoredCheckpoint | None = None
        self._uploaded: set[str] = set()
        #: Error of the current upload's last attempt; None: it has not failed.
        self._last_error: StorageError | OSError | None = None
        self._changed = asyncio.Condition()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(remove_snapshots, self._run_dir)
        self._task = asyncio.create_task(self._run(), name="upload of checkpoints")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._failure.cancel()
        await asyncio.to_thread(remove_snapshots, self._run_dir)

    async def begin_attempt(self, fence: int) -> None:
        """Claim the fence of an attempt.

        Raises:
            StaleFence, AddressTaken: Another driver has taken over.
            StorageUnavailable: The claim is repeated before the next upload.
            StorageRefused: The credentials, or the bucket, are wrong.
        """
        run = await asyncio.to_thread(run_id, self._run_dir)
        self._claim = RemoteClaim(fence=fence, run=run)
        await self._ensure_claimed()

    async def enqueue(self, checkpoint: StoredCheckpoint) -> None:
        """Upload a checkpoint once the current upload has ended. Those that still wait for it are left out,
        unless they are among the best.
        """
        if checkpoint.path.name in self._uploaded:
            return
        async with self._changed:
            self._add_waiting(checkpoint)
            self._pin()
            self._changed.notify_all()

    async def wait_until_uploaded(self) -> None:
        """Wait until no checkpoint waits for its upload. The caller limits the time.

        Raises StaleFence or AddressTaken if another driver has taken over.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.is_idle or self._failure.done())
        if self._failure.done():
            self._failure.result()

    async def wait_until_uploaded_or_failed(self) -> None:
        """Wait like `wait_until_uploaded`. Raises the error of an upload that has failed and is retried."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.is_idle or self._failure.done() or self._last_error is not None
            )
            error = self._last_error
        if self._failure.done():
            self._failure.result()
        if error is not None:
            raise error

    @property
    def is_idle(self) -> bool:
        """True if no checkpoint waits for its upload."""
        return not self._waiting and self._current is None

    async def wait_until_replaced(self) -> None:
        """Wait until another driver has taken over. Raises StaleFence or AddressTaken then."""
        await asyncio.shield(self._failure)

    async def publish_result(self, folder: Path, step: int, labels: Mapping[str, str]) -> str:
        """Upload the result of the job and return its address. Older results are deleted.

        Raises StaleFence, AddressTaken, StorageError and OSError.
        """
        await self._ensure_claimed()
        name = result_name(step, self._current_claim.fence)
        files = await asyncio.to_thread(_all_files, folder)
        manifest = await self._remote.publish(
            f"{RESULTS}/{name}", files, labels, lambda: self._current_claim, {}
        )
        self.state.bytes += manifest.size_bytes
        uri = f"{self._remote.uri}/{RESULTS}/{name}"
        log.info("result uploaded", extra={"uri": uri, "bytes": manifest.size_bytes})
        await self._remove_old(RESULTS, RetentionPolicy(1))
        return uri

    @property
    def _current_claim(self) -> RemoteClaim:
        assert self._claim is not None, "an attempt must begin before its first upload"
        return self._claim

    async def _ensure_claimed(self) -> None:
        claim = self._current_claim
        if claim != self._claimed:
            await self._remote.claim(claim.fence, claim.run)
            self._claimed = claim

    async def _run(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._waiting))
                # The newest first: it is what a restart needs.
                self._current = self._waiting.pop()
            try:
                await self._upload_with_retries(self._current)
            except Exception as error:
                self._failure.set_exception(error)
                self._failure.exception()  # retrieved, as no other task may wait for it
                raise
            finally:
                async with self._changed:
                    self._current = self._last_error = None
                    self._pin()
                    self._changed.notify_all()

    async def _upload_with_retries(self, checkpoint: StoredCheckpoint) -> None:
        """Upload a checkpoint, or let a newer one that waits go first after a failure.

        Raises StaleFence and AddressTaken.
        """
        backoff = restart_backoff()
        uploaded: dict[str, FolderFile] = {}
        while True:
            try:
                await self._upload(checkpoint, uploaded)
                return
            except (StorageError, OSError) as error:
                async with self._changed:
                    self.state.failures += 1
                    self._last_error = error
                    self._changed.notify_all()
                delay = backoff.next_delay()
                log.warning(
                    "a checkpoint could not be uploaded",
                    extra={"step": checkpoint.manifest.step, "cause": str(error), "retry_seconds": delay},
                )
            if await self._newer_waits(checkpoint, delay):
                return

    async def _newer_waits(self, checkpoint: StoredCheckpoint, seconds: float) -> bool:
        """Return True as soon as a newer checkpoint waits, False after this time.

        This one then waits too if it is among the best.
        """
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._has_newer(checkpoint))
                self._add_waiting(checkpoint)
        except TimeoutError:
            return False
        return True

    def _has_newer(self, checkpoint: StoredCheckpoint) -> bool:
        return any(other.age > checkpoint.age for other in self._waiting)

    def _add_waiting(self, checkpoint: StoredCheckpoint) -> None:
        """Let a checkpoint wait for its upload; of all that wait the newest stays, the best, and those of
        checkpoint.keepEverySteps.
        """
        others = [other for other in self._waiting if other.path != checkpoint.path]
        waiting = sorted([*others, checkpoint], key=lambda other: other.age)
        scores = {other.path: self._retention.score(other.manifest.driver_state) for other in waiting}
        steps = {other.path: other.manifest.step for other in waiting}
        stay = replace(self._retention, keep=1).retained(scores, steps.__getitem__)
        self._waiting = [other for other in waiting if other.path in stay]

    async def _upload(self, checkpoint: StoredCheckpoint, uploaded: dict[str, FolderFile]) -> None:
        manifest = checkpoint.manifest
        folder = f"{CHECKPOINTS}/{checkpoint.path.name}"
        await self._ensure_claimed()
        size, started = 0, time.monotonic()
        if not await self._remote.is_published(folder):
            files = await asyncio.to_thread(snapshot_files, self._run_dir, checkpoint)
            labels = {"job": manifest.job, "step": str(manifest.step), "fence": str(manifest.fence)}
            labels |= score_labels(self._retention.score(manifest.driver_state))
            published = await self._remote.publish(
                folder, files, labels, lambda: self._current_claim, uploaded
            )
            size = published.size_bytes
            await asyncio.to_thread(remove_snapshots, self._run_dir)
        self._uploaded.add(checkpoint.path.name)
        self.state.step, self.state.committed_at = manifest.step, manifest.created.timestamp()
        self.state.bytes += size
        seconds = time.monotonic() - started
        log.info(
            "checkpoint uploaded",
            extra={
                "step": manifest.step,
                "uri": f"{self._remote.uri}/{folder}",
                "bytes": size,
                "seconds": seconds,
            },
        )
        pinned = await asyncio.to_thread(pinned_steps, self._run_dir)
        await self._remove_old(CHECKPOINTS, self._retention, pinned)

    async def _remove_old(self, kind: str, retention: RetentionPolicy, pinned: Container[int] = ()) -> None:
        """Delete old copies. A failure leaves them for the next upload. Raises StaleFence, AddressTaken."""
        try:
            await self._remote.remove_old(kind, retention, self._current_claim, pinned)
        except StorageError as error:
            log.warning("old copies could not be deleted", extra={"kind": kind, "cause": str(error)})

    def _pin(self) -> None:
        needed = {checkpoint.path for checkpoint in (self._current, *self._waiting) if checkpoint is not None}
        self.pinned.intersection_update(needed)
        self.pinned.update(needed)


def _all_files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
