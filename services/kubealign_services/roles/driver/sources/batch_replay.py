"""Replays the recorded batches of another run from the state that trained on the first of them."""

import asyncio
import logging

from kubealign.replay.plan import ReplayError, ReplayPlan
from kubealign.replay.record import FOLDER, RecordedStep, read_batch, read_record
from kubealign.v1 import batch_pb2
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.codec import CorruptBatch, decode
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.store import CheckpointReader, StoredCheckpoint
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.sources.batch_recorder import digest_algorithm_state
from kubealign_services.roles.driver.state import JobState

log = logging.getLogger(__name__)


class ReplaySource:
    """Batch source that returns the recorded batch of each step, bit for bit."""

    def __init__(self, replay: ReplayPlan, algorithm: Algorithm, stop: asyncio.Event) -> None:
        self._folder = replay.run / FOLDER
        self._last_step = replay.last_step
        self._needs_reference = algorithm.needs_reference
        self._stop = stop
        self._trained: list[str] = []

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        """Return the recorded batch of the next step, or None after the last one.

        Raises:
            UnrecoverableError: The batch is missing, was altered, or lacks a column that the algorithm
                needs.
            ShutdownRequested: The driver was asked to stop.
        """
        if self._stop.is_set():
            raise ShutdownRequested
        if state.step >= self._last_step:
            return None
        try:
            line, batch = await asyncio.to_thread(self._read_step, state.step + 1)
        except (ReplayError, CorruptBatch) as error:
            raise UnrecoverableError(str(error)) from error
        if self._needs_reference and "reference_logprobs" not in batch.token_columns:
            raise UnrecoverableError(
                f"step {line.step}: the batch was recorded without a reference's log-probabilities, which "
                "spec.algorithm needs"
            )
        if line.algorithm_state != digest_algorithm_state(state.algorithm):
            log.warning("the algorithm's state differs from the recorded run's", extra={"step": line.step})
        self._trained = line.groups
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        return batch

    def state_after(self, state: JobState) -> JobState:
        next_state = state.copy_for_next_step()
        next_state.trained = self._trained
        # No prompt is drawn in a replay.
        next_state.curriculum = None
        return next_state

    def _read_step(self, step: int) -> tuple[RecordedStep, Batch]:
        line = read_record(self._folder, step)
        columns = read_batch(self._folder, line)
        message = batch_pb2.PackedBatch(sample_ids=line.sample_ids, columns=columns, digest=line.digest)
        return line, decode(message)


def load_initial_checkpoint(replay: ReplayPlan) -> StoredCheckpoint | None:
    """Return the checkpoint that the first replayed step starts from; None: the initial weights.

    Raises:
        UnrecoverableError: The checkpoint does not exist any more.
        CheckpointCorrupted: The checkpoint is damaged.
        CorruptLineage: The start of a driver cannot be read.
    """
    if replay.first_step == 1:
        return None
    checkpoint = CheckpointReader(replay.run).at_step(replay.first_step - 1)
    if checkpoint is None:
        raise UnrecoverableError(f"the checkpoint of step {replay.first_step - 1} in {replay.run} has gone")
    return checkpoint
