"""Records the batch of each step for replay. `kubealign.replay.record` defines the file layout."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from kubealign.replay.record import RecordedStep, batch_path, line_path, recorded_steps
from kubealign_services.batch.codec import digest_of, encode
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.durable import replace, sync
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.rounds.samples import prompts_of
from kubealign_services.driver.source import Source
from kubealign_services.driver.state import JobState

_REMEDY = "make room, or set spec.checkpoint.recordBatches: false"


class BatchRecorder:
    """Writes the batches of one job under one fence. A repeated step replaces its earlier record."""

    def __init__(self, folder: Path, fence: int, seed: int) -> None:
        self._folder = folder
        self._fence = fence
        self._seed = seed

    def resume_at(self, step: int) -> None:
        """Delete the records of steps that a rollback undid. Raises UnrecoverableError if the disk refuses.
        """
        try:
            self._folder.mkdir(exist_ok=True)
            for later in recorded_steps(self._folder):
                if later > step:
                    line_path(self._folder, later).unlink()
                    batch_path(self._folder, later).unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(step, error) from error

    def write(self, state: JobState, batch: Batch, attempts: Mapping[str, int]) -> None:
        """Record the batch of the step after `state` durably. Raises UnrecoverableError if the disk refuses.
        """
        step = state.step + 1
        message = encode(batch)
        groups = prompts_of(batch.sample_ids)
        line = RecordedStep(
            step=step,
            version=state.version,
            fence=self._fence,
            seed=self._seed,
            sample_ids=batch.sample_ids,
            groups=groups,
            attempts=[attempts[group] for group in groups] if attempts else [],
            algorithm_state=state_digest(state.algorithm),
            digest=message.digest,
            size_bytes=len(message.columns),
        )
        line_file = line_path(self._folder, step)
        try:
            if line_file.exists():
                line_file.unlink()
                sync(self._folder)
            replace(batch_path(self._folder, step), [message.columns])
            replace(line_file, [line.model_dump_json().encode() + b"\n"])
        except OSError as error:
            raise self._failed(step, error) from error

    def _failed(self, step: int, error: OSError) -> JobFailed:
        path = error.filename or self._folder
        return JobFailed(f"step {step} was not recorded: {error.strerror or error} at {path}: {_REMEDY}")


class RecordingSource:
    """Batch source that records each batch of another source before anything is computed from it."""

    def __init__(self, source: Source, recorder: BatchRecorder) -> None:
        self._source = source
        self._recorder = recorder

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        """Return the next batch of the inner source. Raises UnrecoverableError if the batch cannot be
        recorded.
        """
        batch = await self._source.take(state, step)
        if batch is not None:
            with step.phase("record"):
                # Encode and write off the event loop, so that samples continue to arrive.
                await asyncio.to_thread(self._recorder.write, state, batch, step.attempts)
        return batch

    def after(self, state: JobState) -> JobState:
        return self._source.after(state)


def state_digest(state: Mapping[str, float]) -> str:
    """Return a digest of the algorithm's state between steps."""
    return digest_of(json.dumps(dict(state), sort_keys=True).encode())
