"""A round's rows: responses sampled, rewarded or judged, made into rows, compared with the weights that they
came from."""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from kubealign.spec.rewards import Reward
from kubealign_services.algorithms.rounds import RoundAlgorithm, RoundRows, pack_rows
from kubealign_services.batch.packed import Batch
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.assembly import Sampled, assemble
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.groups import GroupBuffer, GroupPlan
from kubealign_services.driver.ledger import Group
from kubealign_services.driver.mismatch import check_mismatch, mismatch
from kubealign_services.driver.report import StepFigures
from kubealign_services.driver.rounds.files import Round, RoundFiles, RoundHeader, Supplied
from kubealign_services.driver.rounds.judging import PURPOSE, PolicyJudge
from kubealign_services.driver.rounds.samples import prompt_of
from kubealign_services.driver.source import data_figures, response_figures
from kubealign_services.driver.state import JobState
from kubealign_services.driver.supply import EpochSupply
from kubealign_services.driver.training_client import TrainerClient
from kubealign_services.driver.validation_figures import ValidationSample, samples_of
from kubealign_services.scoring.combination import Moments, combine


@dataclass(frozen=True)
class RoundPlan:
    """sequences_per_pass: of one call for log-probabilities. gap: the most, in nats, that engine and trainer
    may differ by on average."""

    groups: GroupPlan
    rewards: Sequence[Reward]
    sequences_per_pass: int
    gap: float
    dropped: int


@dataclass
class Sampling:
    """What was sampled for a round. rewards: by sample id."""

    groups: list[Group]
    supply: EpochSupply
    given_up: list[str]
    moments: dict[str, Moments]
    rewards: dict[str, float | None] = field(default_factory=dict)


class RoundMaker:
    """Makes rounds, or finds those that were made.

    supply: the data from the state's place on. publish: gives the rollout workers the weights of a version
    and returns their digest. show: is given the samples for displays.
    """

    def __init__(
        self,
        plan: RoundPlan,
        algorithm: RoundAlgorithm,
        unit: int,
        files: RoundFiles,
        exchange: Exchange,
        trainer: TrainerClient,
        supply: Callable[[JobState], EpochSupply],
        publish: Callable[[int], Awaitable[str]],
        judge: PolicyJudge | None,
        show: Callable[[StepFigures, Sequence[ValidationSample], int], None],
    ) -> None:
        self._plan = plan
        self._algorithm = algorithm
        self._unit = unit
        self._files = files
        self._exchange = exchange
        self._trainer = trainer
        self._supply = supply
        self._publish = publish
        self._judge = judge
        self._show = show

    async def round(self, number: int, state: JobState, step: StepFigures) -> Round | RoundRows:
        """The round of this number, begun with the state's weights and place in the data; RoundRows where no
        row came of it. Raises JobFailed, Stopping, RefitFailed."""
        with step.phase("refit"):
            weights = await self._publish(state.version)
        begins = Supplied(cursor=state.cursor, unfinished=state.unfinished)
        found = await asyncio.to_thread(self._files.made_with, number, weights, begins)
        if found is not None:
            return found
        sampling = await self._sampled(number, state, step)
        rows = {group.group_id: sampling.supply.row(group.group_id) for group in sampling.groups}
        await self._judged(sampling, rows, state.version, step)
        self._show(step, self._answers(sampling), state.version)
        made = self._algorithm.rows(
            [prompt_of(group, rows[group.group_id], sampling.rewards) for group in sampling.groups]
        )
        step.add(made.figures)
        if not made.rows:
            return made
        batch = pack_rows(made.rows)
        await self._compared(batch, step)
        header = RoundHeader(
            round=number,
            fence=self._exchange.fence,
            version=state.version,
            weights=weights,
            begins=begins,
            ends=Supplied(cursor=sampling.supply.cursor, unfinished=sampling.supply.left_over),
            prompts=[group.group_id for group in sampling.groups],
            given_up=sampling.given_up,
            rewards=sampling.moments,
            figures=made.figures,
            unit=self._unit,
        )
        return await asyncio.to_thread(self._files.write, header, batch)

    async def _sampled(self, number: int, state: JobState, step: StepFigures) -> Sampling:
        supply, plan = self._supply(state), self._plan
        asked = time.monotonic()
        names = tuple(reward.name for reward in plan.rewards)
        buffer = GroupBuffer(
            self._exchange, supply, plan.groups, "train", names, failures=len(state.given_up)
        )
        try:
            groups = await buffer.take(state.version)
        finally:
            buffer.close()
        generated = max(asked, *(group.generated_at or asked for group in groups))
        step.add({"seconds/generate": generated - asked, "seconds/score": time.monotonic() - generated})
        sampling = plan.groups.sampling
        batch = assemble(
            groups, names, Sampled(sampling.temperature, sampling.max_tokens), state.version, reference=False
        )
        step.add(response_figures(batch, state.version))
        step.add(data_figures(supply, plan.dropped))
        await self._agrees(batch, step)
        # The state is as it was until a step of the round is done.
        made = Sampling(groups, supply, list(buffer.given_up), copy.deepcopy(state.rewards))
        if plan.rewards:
            step.add(combine(batch, plan.rewards, number, made.moments))
            rewards = batch.sequence("rewards").tolist()
            made.rewards = dict(zip(batch.sample_ids, rewards, strict=True))
        return made

    async def _agrees(self, batch: Batch, step: StepFigures) -> None:
        """Compare engine and trainer on some of the samples: they must compute the same."""
        some = batch.select(range(min(len(batch), self._plan.sequences_per_pass)))
        some.token_columns["old_logprobs"] = await self._trainer.logprobs(some)
        step.add(mismatch(some))
        check_mismatch(step.metrics, self._plan.gap)

    def _answers(self, sampling: Sampling) -> list[ValidationSample]:
        """The samples with what each was given: by each reward, or by the judge."""
        answers = samples_of(sampling.groups, [reward.name for reward in self._plan.rewards])
        if self._judge is None:
            return answers
        given = sampling.rewards.values()
        return [
            replace(answer, scores={} if score is None else {PURPOSE: score})
            for answer, score in zip(answers, given, strict=True)
        ]

    async def _judged(
        self, sampling: Sampling, rows: Mapping[str, PreparedRow], version: int, step: StepFigures
    ) -> None:
        if self._judge is None:
            return
        with step.phase("judge"):
            sampling.rewards, figures = await self._judge(sampling.groups, rows, version)
        step.add(figures)

    async def _compared(self, batch: Batch, step: StepFigures) -> None:
        """Where the algorithm needs a reference: the trainer stands at the round's start, so it is one."""
        if not self._algorithm.needs_reference:
            return
        with step.phase("reference"):
            size = self._plan.sequences_per_pass
            passes = [range(first, min(first + size, len(batch))) for first in range(0, len(batch), size)]
            parts = [await self._trainer.logprobs(batch.select(part)) for part in passes]
        batch.token_columns["reference_logprobs"] = torch.cat(parts)
