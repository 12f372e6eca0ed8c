"""Batch sources: rows of a data set, or groups sampled from the policy."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from kubealign.spec.rewards import Reward
from kubealign_services.batch.companions import learned
from kubealign_services.batch.packed import Batch
from kubealign_services.driver.ahead import Ahead
from kubealign_services.driver.assembly import Sampled, assemble, mixed, sample_id, staleness
from kubealign_services.driver.failures import Stopping
from kubealign_services.driver.groups import GroupBuffer
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.report import Answer, StepFigures
from kubealign_services.driver.row_batches import RowBatches
from kubealign_services.driver.score_figures import score_figures
from kubealign_services.driver.state import JobState
from kubealign_services.driver.supply import EpochSupply
from kubealign_services.scoring.combination import combine


class Source(Protocol):
    """Source of one batch per step."""

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        """Return the next batch; None when the data has run out. Raises UnrecoverableError,
        ShutdownRequested.
        """

    def after(self, state: JobState) -> JobState:
        """Return the state that follows once the batch just taken is trained on."""


class FrozenModels(Protocol):
    """Client of frozen models that score given rows: a reference (log-probabilities) or a teacher
    (candidates).
    """

    async def read(self, batch: Batch, step: StepFigures) -> None:
        """Add the models' columns. The batch's sample ids are the rows' names. Raises UnrecoverableError,
        ShutdownRequested.
        """


class NoFrozenModels:
    """No-op client for an algorithm that trains on the rows alone."""

    async def read(self, batch: Batch, step: StepFigures) -> None:
        return None


class RowSource:
    """Rows of the data set in epoch order."""

    def __init__(
        self,
        supply: EpochSupply,
        dropped: int,
        rows_per_step: int,
        batches: RowBatches,
        stop: asyncio.Event,
        frozen: FrozenModels,
    ) -> None:
        self._frozen = frozen
        self._supply = supply
        self._dropped = dropped
        self._stop = stop
        self._rows_per_step = rows_per_step
        self._batches = batches
        self._taken: list[str] = []

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        if self._stop.is_set():
            raise Stopping
        names: list[str] = []
        while len(names) < self._rows_per_step and (name := self._supply.next()) is not None:
            names.append(name)
        self._taken = names
        if not names:
            return None
        batch = self._batches.of(names)
        await self._frozen.read(batch, step)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(data_figures(self._supply, self._dropped))
        return batch

    def after(self, state: JobState) -> JobState:
        following = state.next()
        following.cursor = self._supply.cursor
        following.trained = self._taken
        return following


class ColocatedScorers(Protocol):
    """Scorers hosted by critic or trainer, called once the groups are complete."""

    async def score(self, batch: Batch, step: StepFigures) -> None:
        """Add the columns reward.NAME and reference_logprobs."""


class GroupSource:
    """Groups sampled from the policy, joined with their rewards."""

    def __init__(
        self,
        supply: EpochSupply,
        dropped: int,
        buffer: GroupBuffer,
        rewards: Sequence[Reward],
        bus_rewards: Sequence[str],
        bus_reference: bool,
        colocated: ColocatedScorers,
        sampled: Sampled,
        ahead: Sequence[Ahead],
    ) -> None:
        """Set up the source.

        Args:
            prefetchers: Prefetch columns of generated groups while others are still generated or scored.
        """
        self._supply = supply
        self._dropped = dropped
        self._buffer = buffer
        self._rewards = rewards
        self._bus_rewards = bus_rewards
        self._bus_reference = bus_reference
        self._colocated = colocated
        self._sampled = sampled
        self._ahead = ahead
        self._taken: list[str] = []

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        requested_at, discarded = time.monotonic(), self._buffer.discarded

        def pack_unscored(part: Sequence[Group]) -> Batch:
            return assemble(part, (), self._sampled, state.version, reference=False)

        def submit_ready(generated_groups: Sequence[Group], missing: int) -> None:
            for prefetcher in self._ahead:
                prefetcher.offer(generated_groups, missing, pack_unscored)

        groups = await self._buffer.take(state.version, submit_ready)
        if not groups:
            return None
        self._taken = [group.group_id for group in groups]
        taken_at = time.monotonic()
        last_generated_at = max(requested_at, *(group.generated_at or requested_at for group in groups))
        step.add(
            {
                "seconds/generate": last_generated_at - requested_at,
                "seconds/score": taken_at - last_generated_at,
            }
        )
        step.add(waits(groups, requested_at, taken_at))
        batch = assemble(groups, self._bus_rewards, self._sampled, state.version, self._bus_reference)
        await self._colocated.score(batch, step)
        step.add(
            score_figures(
                group.score(sample, name)
                for group in groups
                for sample in group.rollouts
                for name in self._bus_rewards
            )
        )
        step.add(combine(batch, self._rewards, state.step + 1, state.rewards))
        step.add(response_figures(batch, state.version))
        step.add(data_figures(self._supply, self._dropped))
        step.answers = answers(groups)
        step.attempts = {group.group_id: group.attempt for group in groups}
        step.add(
            {
                "rollout/groups_in_flight": self._buffer.in_flight,
                "rollout/groups_waiting": self._buffer.waiting,
                "rollout/groups_discarded": self._buffer.discarded - discarded,
                "data/discarded_groups": self._buffer.discarded,
                "data/uninformative_groups": self._buffer.uninformative,
                "data/given_up_prompts": len(state.given_up) + len(self._buffer.given_up),
            }
        )
        return batch

    def after(self, state: JobState) -> JobState:
        following = state.next()
        following.cursor = self._supply.cursor
        following.unfinished = [*self._buffer.outstanding, *self._supply.left_over]
        following.trained = self._taken
        following.given_up = [*state.given_up, *self._buffer.given_up]
        self._buffer.given_up.clear()
        return following


def answers(groups: Sequence[Group]) -> dict[str, Answer]:
    """Return sample id (as in the batch) -> texts of the sample."""
    return {
        sample_id(group.group_id, sample): Answer(json.loads(rollout.columns)["prompt"], rollout.response)
        for group in groups
        for sample, rollout in group.rollouts.items()
    }


def waits(groups: Sequence[Group], asked: float, taken: float) -> dict[str, float]:
    """Return how long trainer and groups waited for each other, in seconds.

    The trainer waited for this batch's groups from `asked` to `taken` (time.monotonic()); a complete group
    waited for the trainer.
    """
    waited = [taken - (group.completed_at or taken) for group in groups]
    return {
        "seconds/wait_groups": taken - asked,
        "seconds/groups_waited": sum(waited) / len(waited),
    }


def data_figures(supply: EpochSupply, dropped: int) -> dict[str, float]:
    """Return the position in the data as metrics.

    Args:
        dropped_rows: Rows left out for their length during preparation.
    """
    return {"data/epoch": supply.cursor.epoch, "data/dropped_prompts": dropped}


def response_figures(batch: Batch, version: int) -> dict[str, float]:
    """Return lengths, truncation, staleness and weight version of a batch of samples, without auxiliary
    sequences.
    """
    batch = learned(batch)
    lengths = torch.zeros(len(batch)).index_add(0, batch.sequence_of_token, batch.token("loss_mask").float())
    age = staleness(batch, version)
    workflow_metrics = {
        f"rollout/{name}": float(batch.sequence(name).float().mean())
        for name in ("turns", "tool_errors")
        if name in batch.sequence_columns
    }
    return workflow_metrics | {
        "batch/tokens": len(batch.tokens),
        "batch/sequences": len(batch),
        "response/length": float(lengths.mean()),
        "response/length_max": float(lengths.max()),
        "response/truncated_share": float(batch.sequence("truncated").float().mean()),
        "weights/version": version,
        "rollout/staleness": float(age.float().mean()),
        "rollout/staleness_max": float(age.max()),
        "rollout/mixed_versions_share": float(mixed(batch).float().mean()),
    }
