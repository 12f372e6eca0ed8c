"""Curriculum: chooses the prompts of each epoch by the mean rewards of their latest groups. Pure.

Committed steps decide alone. An epoch's pools are assigned by the mean rewards of the steps that were
committed when the epoch's first prompt was drawn; prompts still in flight then count with their earlier
reward. The number of that step is in the job's state and the mean rewards are in the history, so that a
resumed job assigns the same pools.

Of the draws of a pool, an epoch takes every (1 / share)-th, beginning at a random draw (systematic sampling,
Madow and Madow 1944). Of n draws it takes n x share, rounded up or down, and each draw is equally likely to
be taken. The draws of each source of a mixture are counted separately, so that all sources have the same
shares.
"""

import json
from collections.abc import Sequence
from enum import IntEnum
from fractions import Fraction
from math import floor
from statistics import fmean

import xxhash

from kubealign.spec.sections.curriculum import PromptCurriculum
from kubealign.spec.sections.rewards import Reward
from kubealign_services.batch.auxiliary_sequences import trainable
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_scores, weighted_sum
from kubealign_services.checkpoints.history import TrainedStep
from kubealign_services.data.epoch_shuffle import RowOrder
from kubealign_services.data.prepared import row_index
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.batch_assembly import prompt_of
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.roles.driver.state import CurriculumState, JobState

# Smaller differences from a threshold are rounding errors.
_REWARD_TOLERANCE = 1e-9


class Pool(IntEnum):
    """Pool of a prompt. NORMAL: also prompts without a reward."""

    NORMAL = 0
    EASY = 1
    HARD = 2


class MeanReward:
    """Mean reward of a prompt over its samples: of one source, in its own units, or of the weighted sum of
    the sources' raw scores, before standardisation.

    Samples to which none of these rewards applies do not count; a prompt of such samples has no mean reward.
    """

    def __init__(self, rewards: Sequence[Reward], by: str | None = None) -> None:
        self._weights = {reward.name: reward.weight for reward in rewards} if by is None else {by: 1.0}

    def of_batch(self, batch: Batch) -> dict[str, float | None]:
        """Return prompt -> mean reward over its trained samples; None: it has none.

        Args:
            batch: Has the scores of the rewards, see `batch.reward_columns`.
        """
        batch = trainable(batch)
        columns = {name: read_scores(batch, name) for name in self._weights}
        sums: dict[str, list[float | None]] = {}
        for index, sample_id in enumerate(batch.sample_ids):
            total = weighted_sum({name: column[index] for name, column in columns.items()}, self._weights)
            sums.setdefault(prompt_of(sample_id), []).append(total)
        return {prompt: _known_mean(values) for prompt, values in sums.items()}

    def of_group(self, group: RolloutGroup) -> float | None:
        """Return the mean reward of a complete group, all of whose rewards were scored on the bus; None: it
        has none.
        """
        return _known_mean([group.weighted_reward(sample, self._weights) for sample in group.rollouts])


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def classify(mean_reward: float, spec: PromptCurriculum) -> Pool:
    """Return the pool of a prompt with this mean reward."""
    if spec.easy is not None and mean_reward >= spec.easy.at_least - _REWARD_TOLERANCE:
        return Pool.EASY
    if spec.hard is not None and mean_reward <= spec.hard.at_most + _REWARD_TOLERANCE:
        return Pool.HARD
    return Pool.NORMAL


def is_drawn(share: float, offset: Fraction, index: int) -> bool:
    """Return True if an epoch takes the draw `index` (from 0) of a pool.

    Args:
        offset: Random start, from 0 up to, not including, 1.
    """
    # The decimal number as it is written: 0.2 of 10 draws are exactly two.
    exact = Fraction(repr(share))
    return floor((index + 1) * exact + offset) > floor(index * exact + offset)


class Curriculum:
    """Chooses the prompts of each epoch, and measures the prompts of each step."""

    def __init__(
        self,
        spec: PromptCurriculum,
        mean_reward: MeanReward,
        order: RowOrder,
        seed: int,
        state: JobState,
        history: Sequence[TrainedStep],
    ) -> None:
        """Restore the pools.

        Args:
            order: Order of the draws, of which the curriculum skips some.
            seed: Seed of the job.
            state: Committed state from which the job continues.
            history: Steps up to that state, in order.

        Raises:
            UnrecoverableError: The mean rewards in the history are not those of the state.
        """
        self._spec = spec
        self._mean_reward = mean_reward
        self._order = order
        self._seed = seed
        self._shares = {
            pool: 1.0 if entry is None else entry.share
            for pool, entry in ((Pool.EASY, spec.easy), (Pool.HARD, spec.hard))
        }
        # Pool of each row by its latest reward, a byte each.
        self._latest_pools = bytearray(order.rows)
        self._step = state.step
        self._measured: dict[str, float | None] = {}
        self._dropped: dict[str, float | None] = {}
        self._restore(state.curriculum or CurriculumState(), history)

    def commit(self, state: JobState) -> None:
        """Record the mean rewards of the step that made `state`, and begin to measure the next step."""
        self._dropped.clear()
        if state.step != self._step and state.curriculum is not None:
            prompts = [*state.trained, *state.curriculum.dropped]
            self._record(prompts, state.curriculum.mean_rewards)
            self._digest = state.curriculum.digest
            self._step = state.step

    def should_draw(self, epoch: int, row: int) -> bool:
        """Return True if a draw of the epoch is taken, and count it; otherwise it is skipped.

        Must be called once for each draw, in the order of the draws.
        """
        if epoch != self._epoch:
            self._begin_epoch(epoch)
        pool = Pool(self._epoch_pools[row])
        if pool is Pool.NORMAL:
            return True
        source = self._order.source_of(row) or ""
        passed = self._passed.setdefault(source, [0, 0])
        index = passed[pool - 1]
        passed[pool - 1] += 1
        is_taken = is_drawn(self._shares[pool], self._offset(source, pool), index)
        self._skipped += not is_taken
        return is_taken

    def measure(self, batch: Batch) -> None:
        """Measure the prompts of the step's batch."""
        self._measured = self._mean_reward.of_batch(batch)

    def measure_dropped(self, group: RolloutGroup) -> None:
        """Measure a group that dynamic sampling drops from the step."""
        self._dropped[group.group_id] = self._mean_reward.of_group(group)

    def metrics(self) -> dict[str, float]:
        """Return the sizes of the pools of the epoch, and the number of skipped prompts since the start."""
        return {
            "curriculum/easy": self._epoch_pools.count(Pool.EASY),
            "curriculum/hard": self._epoch_pools.count(Pool.HARD),
            "curriculum/skipped": self._skipped,
        }

    def state_after(self, trained: Sequence[str]) -> CurriculumState:
        """Return the state that follows once the measured batch is trained on.

        Args:
            trained: Prompts of the batch.
        """
        mean_rewards = [*(self._measured[prompt] for prompt in trained), *self._dropped.values()]
        dropped = list(self._dropped)
        return CurriculumState(
            epoch=self._epoch,
            pools_step=self._pools_step,
            passed={source: list(counts) for source, counts in self._passed.items()},
            skipped=self._skipped,
            dropped=dropped,
            mean_rewards=mean_rewards,
            digest=_chain_digest(self._digest, [*trained, *dropped], mean_rewards),
        )

    def _restore(self, progress: CurriculumState, history: Sequence[TrainedStep]) -> None:
        self._epoch, self._pools_step = progress.epoch, progress.pools_step
        self._passed = {source: list(counts) for source, counts in progress.passed.items()}
        self._skipped = progress.skipped
        lines = [line for line in history if line.mean_rewards]
        self._digest = ""
        for line in lines:
            self._digest = _chain_digest(self._digest, [*line.prompts, *line.dropped], line.mean_rewards)
        if self._digest != progress.digest:
            raise UnrecoverableError(
                f"the mean rewards of prompts in the history are not those that step {self._step} was made "
                "with: the file is damaged, and the curriculum cannot continue; restore it, or start the job "
                "afresh"
            )
        for line in (line for line in lines if line.step <= progress.pools_step):
            self._record([*line.prompts, *line.dropped], line.mean_rewards)
        # Pool of each row as the current epoch was assigned.
        self._epoch_pools = bytes(self._latest_pools)
        for line in (line for line in lines if line.step > progress.pools_step):
            self._record([*line.prompts, *line.dropped], line.mean_rewards)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._pools_step = epoch, self._step
        self._epoch_pools = bytes(self._latest_pools)
        self._passed = {}

    def _offset(self, source: str, pool: Pool) -> Fraction:
        key = f"{self._seed}:curriculum:{self._epoch}:{source}:{pool.name}"
        return Fraction(xxhash.xxh3_64_intdigest(key.encode()), 1 << 64)

    def _record(self, prompts: Sequence[str], mean_rewards: Sequence[float | None]) -> None:
        """Assign the latest pools of measured prompts; a prompt without a mean reward keeps its pool."""
        for prompt, mean_reward in zip(prompts, mean_rewards, strict=True):
            if mean_reward is None:
                continue
            self._latest_pools[row_index(prompt)] = classify(mean_reward, self._spec)


def _chain_digest(digest: str, prompts: Sequence[str], mean_rewards: Sequence[float | None]) -> str:
    """Return the digest of all mean rewards up to a step, from the digest up to the step before."""
    text = json.dumps([digest, list(prompts), list(mean_rewards)])
    return str(xxhash.xxh3_128_hexdigest(text.encode()))
