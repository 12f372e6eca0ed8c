"""Where a step's batch comes from: rows of a data set, or groups sampled from the policy."""

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Protocol

import torch

from kubealign.spec.rewards import Reward
from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.driver.assembly import assemble, sample_id, staleness
from kubealign_services.driver.failures import Stopping
from kubealign_services.driver.groups import GroupBuffer
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.report import Answer, StepFigures
from kubealign_services.driver.state import JobState
from kubealign_services.driver.supply import EpochSupply
from kubealign_services.scoring.combination import combine


class Source(Protocol):
    """One batch a step."""

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        """The next batch; None when the data has run out. Raises JobFailed, Stopping."""

    def after(self, state: JobState) -> JobState:
        """The state that follows once the batch just taken is trained on."""


class RowSource:
    """Rows of the data set, in the order of the epochs."""

    def __init__(
        self, supply: EpochSupply, dropped: int, rows_per_step: int, kind: str, stop: asyncio.Event
    ) -> None:
        self._supply = supply
        self._dropped = dropped
        self._stop = stop
        self._rows_per_step = rows_per_step
        self._kind = kind
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
        batch = collate([self._supply.row(name) for name in names], names, self._kind)
        step.add({"batch/tokens": len(batch.tokens), "batch/sequences": len(batch)})
        step.add(data_figures(self._supply, self._dropped))
        return batch

    def after(self, state: JobState) -> JobState:
        following = state.next()
        following.cursor = self._supply.cursor
        following.trained = self._taken
        return following


class ColocatedScorers(Protocol):
    """Scorers that live with the critic or the trainer: they are asked once the groups are whole."""

    async def score(self, batch: Batch, step: StepFigures) -> None:
        """Add reward.NAME and reference_logprobs columns."""


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
        temperature: float,
    ) -> None:
        self._supply = supply
        self._dropped = dropped
        self._buffer = buffer
        self._rewards = rewards
        self._bus_rewards = bus_rewards
        self._bus_reference = bus_reference
        self._colocated = colocated
        self._temperature = temperature
        self._taken: list[str] = []

    async def take(self, state: JobState, step: StepFigures) -> Batch | None:
        asked = time.monotonic()
        groups = await self._buffer.take(state.version)
        if not groups:
            return None
        self._taken = [group.group_id for group in groups]
        generated = max(asked, *(group.generated_at or asked for group in groups))
        step.add({"seconds/generate": generated - asked, "seconds/score": time.monotonic() - generated})
        batch = assemble(groups, self._bus_rewards, self._temperature, self._bus_reference)
        await self._colocated.score(batch, step)
        step.add(combine(batch, self._rewards, state.step + 1, state.rewards))
        step.add(response_figures(batch, state.version))
        step.add(data_figures(self._supply, self._dropped))
        step.answers = answers(groups)
        step.add(
            {
                "rollout/groups_in_flight": self._buffer.in_flight,
                "rollout/groups_waiting": self._buffer.waiting,
                "data/discarded_groups": self._buffer.discarded,
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
    """Sample id, as in the batch -> the texts."""
    return {
        sample_id(group.group_id, sample): Answer(json.loads(rollout.columns)["prompt"], rollout.response)
        for group in groups
        for sample, rollout in group.rollouts.items()
    }


def data_figures(supply: EpochSupply, dropped: int) -> dict[str, float]:
    """Where in the data the job is. dropped: rows left out for their length when it was prepared."""
    return {"data/epoch": supply.cursor.epoch, "data/dropped_prompts": dropped}


def response_figures(batch: Batch, version: int) -> dict[str, float]:
    """Lengths, truncation, staleness and the weights of a batch of samples."""
    lengths = torch.zeros(len(batch)).index_add(0, batch.sequence_of_token, batch.token("loss_mask").float())
    age = staleness(batch, version)
    return {
        "batch/tokens": len(batch.tokens),
        "batch/sequences": len(batch),
        "response/length": float(lengths.mean()),
        "response/length_max": float(lengths.max()),
        "response/truncated_share": float(batch.sequence("truncated").float().mean()),
        "weights/version": version,
        "rollout/staleness": float(age.float().mean()),
        "rollout/staleness_max": float(age.max()),
    }
