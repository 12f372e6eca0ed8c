"""Records the batch of each step for replay. `kubealign.replay.record` defines the file layout."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from kubealign.replay.record import RecordedStep, batch_path, list_recorded_steps, record_path
from kubealign_services.batch.codec import digest_of, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.durable_files import fsync_path, replace_file
from kubealign_services.checkpoints.fence import Fence
from kubealign_services.roles.driver.errors import UnrecoverableError, disk_error
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.batch_assembly import list_prompts
from kubealign_services.roles.driver.sources.batch_sources import BatchSource
from kubealign_services.roles.driver.state import JobState
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.rpc.errors import StorageFull

_REMEDY = "make room, or set spec.checkpoint.recordBatches: false"


class BatchRecorder:
    """Writes the batches of one job under one fence. A repeated step replaces its record."""

    def __init__(self, folder: Path, fence: Fence, seed: int) -> None:
        self._folder = folder
        self._fence = fence
        self._seed = seed

    def resume_at(self, step: int) -> None:
        """Delete the records of steps that a rollback undid. Raises UnrecoverableError on a disk error."""
        try:
            self._folder.mkdir(exist_ok=True)
            for later in list_recorded_steps(self._folder):
                if later > step:
                    record_path(self._folder, later).unlink()
                    batch_path(self._folder, later).unlink(missing_ok=True)
        except OSError as error:
            raise self._storage_error(step, error) from error

    def write(self, state: JobState, batch: Batch, attempts: Mapping[str, int]) -> None:
        """Record the batch of the step after `state` durably.

        Raises:
            StaleFence: Another driver has taken over.
            UnrecoverableError: The disk failed.
        """
        step = state.step + 1
        message = encode(batch)
        groups = list_prompts(batch.sample_ids)
        line = RecordedStep(
            step=step,
            version=state.version,
            fence=self._fence.number,
            seed=self._seed,
            sample_ids=batch.sample_ids,
            groups=groups,
            attempts=[attempts[group] for group in groups] if attempts else [],
            algorithm_state=digest_algorithm_state(state.algorithm),
            digest=message.digest,
            size_bytes=len(message.columns),
        )
        line_file = record_path(self._folder, step)
        try:
            self._fence.check()
            if line_file.exists():
                line_file.unlink()
                fsync_path(self._folder)
            failpoint(Failpoint.RECORD_BEFORE_WRITE)
            replace_file(batch_path(self._folder, step), [message.columns])
            replace_file(line_file, [line.model_dump_json().encode() + b"\n"])
            failpoint(Failpoint.RECORD_AFTER_WRITE)
        except OSError as error:
            raise self._storage_error(step, error) from error

    def _storage_error(self, step: int, error: OSError) -> StorageFull | UnrecoverableError:
        path = error.filename or self._folder
        return disk_error(
            f"step {step} was not recorded: {error.strerror or error} at {path}: {_REMEDY}", error
        )


class RecordingSource:
    """Batch source that records each batch of another source before anything is computed from it."""

    def __init__(self, source: BatchSource, recorder: BatchRecorder) -> None:
        self._source = source
        self._recorder = recorder

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        """Return the next batch of the inner source.

        Raises UnrecoverableError if the batch cannot be recorded.
        """
        batch = await self._source.next_batch(state, step)
        if batch is not None:
            with step.phase("record"):
                # Encode and write off the event loop, so that samples continue to arrive.
                await asyncio.to_thread(self._recorder.write, state, batch, step.attempts)
        return batch

    def state_after(self, state: JobState) -> JobState:
        return self._source.state_after(state)


def digest_algorithm_state(state: Mapping[str, float]) -> str:
    """Return a digest of the algorithm's state between steps."""
    return digest_of(json.dumps(dict(state), sort_keys=True).encode())
