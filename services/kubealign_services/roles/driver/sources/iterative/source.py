"""Batches of an iterative algorithm: rows that the policy generated itself, round after round."""

import asyncio
import logging
from dataclasses import dataclass

import torch
import xxhash

from kubealign_services.batch.packed import Batch
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.roles.driver.rollouts.batch_assembly import list_prompts
from kubealign_services.roles.driver.sources.iterative.round_files import RoundFiles, StoredRound
from kubealign_services.roles.driver.sources.iterative.round_maker import RoundMaker
from kubealign_services.roles.driver.state import JobState, RoundProgress

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RoundSchedule:
    """Rounds of a job and the steps of each."""

    rounds: int
    rows_per_step: int
    epochs: int
    seed: int


class RoundSource:
    """Batch source of rounds. The last step of a round takes the remaining rows."""

    def __init__(
        self, maker: RoundMaker, files: RoundFiles, schedule: RoundSchedule, stop: asyncio.Event
    ) -> None:
        self._maker = maker
        self._files = files
        self._schedule = schedule
        self._stop = stop
        self._round: StoredRound | None = None
        self._progress = RoundProgress()
        self._batch_prompts: list[str] = []

    async def next_batch(self, state: JobState, step: StepRecord) -> Batch | None:
        """Return the round's next rows; None after the last round or when nothing is left to learn.

        In the latter two cases `state.finished` holds the reason.

        Raises:
            UnrecoverableError: A round has no row.
            ShutdownRequested: The driver was asked to stop.
        """
        if self._stop.is_set():
            raise ShutdownRequested
        if not state.round.is_done:
            stored = await self._load_round(state.round)
            progress = state.round
        elif state.round.number >= self._schedule.rounds:
            state.finished = f"the last of {self._schedule.rounds} rounds is done"
            return None
        else:
            new_round = await self._start_round(state, step)
            if new_round is None:
                step.metrics.clear()
                return None
            stored = new_round
            rows = stored.rows * self._schedule.epochs
            progress = RoundProgress(
                number=stored.header.round, file=stored.file, digest=stored.digest, rows=rows
            )
        self._round = stored
        schedule = self._schedule
        indices = select_row_indices(
            progress.taken,
            schedule.rows_per_step,
            stored.rows,
            schedule.epochs,
            schedule.seed,
            progress.number,
        )
        self._progress = progress.advance(len(indices))
        batch = stored.select_rows(indices)
        self._batch_prompts = list_prompts(batch.sample_ids)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add({"round/number": progress.number, "round/rows": stored.rows})
        return batch

    def state_after(self, state: JobState) -> JobState:
        next_state = state.copy_for_next_step()
        next_state.round, next_state.trained = self._progress, self._batch_prompts
        if self._progress.number > state.round.number and self._round is not None:
            header = self._round.header
            next_state.cursor = header.ends.cursor
            next_state.unfinished = list(header.ends.unfinished)
            next_state.given_up = [*state.given_up, *header.given_up]
            next_state.rewards = header.rewards
        return next_state

    async def _load_round(self, progress: RoundProgress) -> StoredRound:
        """Return the round of this progress, from memory or disk."""
        if self._round is not None and self._round.digest == progress.digest:
            return self._round
        return await asyncio.to_thread(self._files.read, progress.file, progress.digest)

    async def _start_round(self, state: JobState, step: StepRecord) -> StoredRound | None:
        """Generate the next round; None if nothing is left to learn."""
        number = state.round.number + 1
        result = await self._maker.make_round(number, state, step)
        if isinstance(result, StoredRound):
            step.add(result.header.figures)
            return result
        cause = f"round {number}: {result.empty_reason}"
        if result.is_converged and number > 1:
            log.warning("nothing is left to learn", extra={"cause": cause})
            state.finished = cause
            return None
        raise UnrecoverableError(f"{cause}; no row came of it, so there is nothing to learn from")


def select_row_indices(start: int, count: int, rows: int, epochs: int, seed: int, number: int) -> list[int]:
    """Return the indices of the next `count` rows of a round, from `start` on; fewer at its end.

    The order of each epoch is drawn from the job's seed, the round's number and the epoch.
    """
    end = min(start + count, rows * epochs)
    indices: list[int] = []
    while start < end:
        epoch, position = divmod(start, rows)
        until = min(rows, position + end - start)
        indices += _epoch_order(rows, seed, number, epoch)[position:until]
        start += until - position
    return indices


def _epoch_order(rows: int, seed: int, number: int, epoch: int) -> list[int]:
    key = xxhash.xxh3_64_intdigest(f"{seed}:round:{number}:{epoch}".encode()) >> 1
    order: list[int] = torch.randperm(rows, generator=torch.Generator().manual_seed(key)).tolist()
    return order
