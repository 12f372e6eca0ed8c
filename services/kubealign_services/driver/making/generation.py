"""Samples of the policy as rows: generate, revise, score, keep or compare."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kubealign.spec.rewards import Reward
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.making.asking import SAMPLES, STAGE, Asking, Question
from kubealign_services.driver.making.figures import Figures
from kubealign_services.driver.making.rewarding import rewarded
from kubealign_services.driver.making.samples import Sample, samples_of
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import StepFigures


class Stage(Protocol):
    """What becomes of samples: others, revised or scored."""

    async def __call__(
        self, samples: Sequence[Sample], state: MakingState, step: StepFigures
    ) -> list[Sample]:
        """In their order; those that cannot be carried on are left out and noted in the state."""


class Choice(Protocol):
    """Which rows come of the samples of a step."""

    async def __call__(
        self, samples: Sequence[Sample], state: MakingState, step: StepFigures
    ) -> list[dict[str, Any]]:
        """In the prompts' order; prompts that give none are noted in the state."""


@dataclass(frozen=True)
class Generation:
    """A RowMaker. sources: the rewards' names on the bus where they score the first samples as they come;
    none where a stage has the samples scored when they are revised."""

    rows: Sequence[PreparedRow]
    asking: Asking
    samples_per_prompt: int
    rewards: Sequence[Reward]
    sources: Sequence[str]
    stages: Sequence[Stage]
    choice: Choice
    figures: Figures

    async def make(
        self, places: Sequence[int], state: MakingState, step: StepFigures
    ) -> list[dict[str, Any]]:
        samples = await self._sampled([self.rows[place] for place in places], state, step)
        for stage in self.stages:
            samples = await stage(samples, state, step)
        self.figures.take(samples, step)
        return await self.choice(samples, state, step)

    async def _sampled(
        self, rows: Sequence[PreparedRow], state: MakingState, step: StepFigures
    ) -> list[Sample]:
        questions = {
            f"0/{row.row}": (row, Question(f"0/{row.row}", row.prompt_tokens, row.prompt_text, row.columns))
            for row in rows
        }
        asked = time.monotonic()
        groups = await self.asking(
            [question for _, question in questions.values()],
            self.samples_per_prompt,
            state,
            STAGE if self.stages else SAMPLES,
            self.sources,
        )
        generated = max([asked, *(group.generated_at or asked for group in groups.values())])
        step.add({"seconds/generate": generated - asked})
        samples = [
            sample
            for name, group in groups.items()
            for sample in samples_of(questions[name][0], group, self.sources)
        ]
        if not self.sources:
            return samples
        step.add({"seconds/score": time.monotonic() - generated})
        return rewarded(samples, self.rewards, state, step)
