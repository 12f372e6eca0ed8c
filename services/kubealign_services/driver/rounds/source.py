"""Batches of rows that the policy made itself, round after round."""

import asyncio
import logging

from kubealign_services.batch.packed import Batch
from kubealign_services.driver.failures import JobFailed, Stopping
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.rounds.files import Round, RoundFiles
from kubealign_services.driver.rounds.making import RoundMaker
from kubealign_services.driver.rounds.order import rows_at
from kubealign_services.driver.rounds.place import RoundPlace
from kubealign_services.driver.rounds.samples import prompts_of
from kubealign_services.driver.state import JobState

log = logging.getLogger(__name__)


class RoundSource:
    """A Source. The last step of a round takes what is left of it."""

    def __init__(
        self,
        maker: RoundMaker,
        files: RoundFiles,
        rounds: int,
        rows_per_step: int,
        epochs: int,
        seed: int,
        stop: asyncio.Event,
    ) -> None:
        self._maker = maker
        self._files = files
        self._rounds = rounds
        self._rows_per_step = rows_per_step
        self._epochs = epochs
        self._seed = seed
        self._stop = stop
        self._round: Round | None = None
        self._place = RoundPlace()
        self._taken: list[str] = []

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        """The round's next rows; None after the last round, or when nothing is left to learn (`state` then
        says so). Raises JobFailed for a round that came to nothing, Stopping."""
        if self._stop.is_set():
            raise Stopping
        if not state.round.done:
            held = await self._held(state.round)
            place = state.round
        elif state.round.number >= self._rounds:
            state.finished = f"the last of {self._rounds} rounds is done"
            return None
        else:
            begun = await self._begun(state, step)
            if begun is None:
                step.metrics.clear()
                return None
            held = begun
            rows = held.rows * self._epochs
            place = RoundPlace(number=held.header.round, file=held.file, digest=held.digest, rows=rows)
        self._round = held
        rows_now = rows_at(
            place.taken, self._rows_per_step, held.rows, self._epochs, self._seed, place.number
        )
        self._place = place.further(len(rows_now))
        batch = held.take(rows_now)
        self._taken = prompts_of(batch.sample_ids)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add({"round/number": place.number, "round/rows": held.rows})
        return batch

    def after(self, state: JobState) -> JobState:
        following = state.next()
        following.round, following.trained = self._place, self._taken
        if self._place.number > state.round.number and self._round is not None:
            header = self._round.header
            following.cursor = header.ends.cursor
            following.unfinished = list(header.ends.unfinished)
            following.given_up = [*state.given_up, *header.given_up]
            following.rewards = header.rewards
        return following

    async def _held(self, place: RoundPlace) -> Round:
        if self._round is not None and self._round.digest == place.digest:
            return self._round
        return await asyncio.to_thread(self._files.read, place.file, place.digest)

    async def _begun(self, state: JobState, step: StepFigures) -> Round | None:
        """The next round; None: nothing is left to learn."""
        number = state.round.number + 1
        made = await self._maker.round(number, state, step)
        if isinstance(made, Round):
            step.add(made.header.figures)
            return made
        cause = f"round {number}: {made.why_none}"
        if made.learned_out and number > 1:
            log.warning("nothing is left to learn", extra={"cause": cause})
            state.finished = cause
            return None
        raise JobFailed(f"{cause}; no row came of it, so there is nothing to learn from")
