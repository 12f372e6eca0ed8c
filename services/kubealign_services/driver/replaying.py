"""Replays the recorded batches of another run from the state that trained on the first of them."""

import asyncio
import logging

from kubealign.replay.errors import CannotReplay
from kubealign.replay.plan import Replay
from kubealign.replay.record import FOLDER, RecordedStep, read_batch, read_line
from kubealign.v1 import batch_pb2
from kubealign_services.algorithms.contract import Algorithm
from kubealign_services.batch.codec import CorruptBatch, decode
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.store import Commit, CommitStore
from kubealign_services.driver.failures import JobFailed, Stopping
from kubealign_services.driver.recording import state_digest
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.state import JobState

log = logging.getLogger(__name__)


class ReplaySource:
    """Batch source that returns the recorded batch of each step, bit for bit."""

    def __init__(self, replay: Replay, algorithm: Algorithm, stop: asyncio.Event) -> None:
        self._folder = replay.run / FOLDER
        self._last_step = replay.last_step
        self._needs_reference = algorithm.needs_reference
        self._stop = stop
        self._trained: list[str] = []

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        """Return the recorded batch of the next step, or None after the last one.

        Raises:
            UnrecoverableError: The batch is missing, was altered, or lacks a column that the algorithm
                needs.
            ShutdownRequested: The driver was asked to stop.
        """
        if self._stop.is_set():
            raise Stopping
        if state.step >= self._last_step:
            return None
        try:
            line, batch = await asyncio.to_thread(self._read, state.step + 1)
        except (CannotReplay, CorruptBatch) as error:
            raise JobFailed(str(error)) from error
        if self._needs_reference and "reference_logprobs" not in batch.token_columns:
            raise JobFailed(
                f"step {line.step}: the batch was recorded without a reference's log-probabilities, which "
                "spec.algorithm needs"
            )
        if line.algorithm_state != state_digest(state.algorithm):
            log.warning(
                "the algorithm's state differs from the recorded run's", extra={"step": line.step}
            )
        self._trained = line.groups
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        return batch

    def after(self, state: JobState) -> JobState:
        following = state.next()
        following.trained = self._trained
        return following

    def _read(self, step: int) -> tuple[RecordedStep, Batch]:
        line = read_line(self._folder, step)
        columns = read_batch(self._folder, line)
        message = batch_pb2.PackedBatch(sample_ids=line.sample_ids, columns=columns, digest=line.digest)
        return line, decode(message)


def first_commit(replay: Replay) -> Commit | None:
    """Return the checkpoint that the first replayed step starts from; None: the initial weights.

    Raises:
        UnrecoverableError: The checkpoint does not exist any more.
        CorruptCommit: The checkpoint is damaged.
    """
    if replay.first_step == 1:
        return None
    folder = replay.run / "commits"
    commit = CommitStore(folder, keep=1).at(replay.first_step - 1)
    if commit is None:
        raise JobFailed(f"the commit of step {replay.first_step - 1} in {folder} has gone")
    return commit
