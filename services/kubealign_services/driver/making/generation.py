"""Generates rows from samples of the policy: sample, revise, score, select or compare."""

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
    """Transformation of samples, such as a revision or scoring."""

    async def __call__(
        self, samples: Sequence[Sample], state: MakingState, step: StepFigures
    ) -> list[Sample]:
        """Return the transformed samples in order; dropped samples are counted in the state."""


class Choice(Protocol):
    """Selection of the rows of a step from its samples."""

    async def __call__(
        self, samples: Sequence[Sample], state: MakingState, step: StepFigures
    ) -> list[dict[str, Any]]:
        """Return the rows in the order of the prompts; prompts without a row are counted in the state."""


@dataclass(frozen=True)
class Generation:
    """Row maker that samples responses of the policy.

    Args:
        sources: Names of the rewards on the bus that score the first samples; empty if a stage scores
            revised samples.
    """

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
        """Return the rows generated from the prompts at these indices."""
        samples = await self._sampled([self.rows[index] for index in places], state, step)
        for stage in self.stages:
            samples = await stage(samples, state, step)
        self.figures.take(samples, step)
        return await self.choice(samples, state, step)

    async def _sampled(
        self, rows: Sequence[PreparedRow], state: MakingState, step: StepFigures
    ) -> list[Sample]:
        """Sample the responses of each row's prompt."""
        requests = {
            f"0/{row.row}": (row, Question(f"0/{row.row}", row.prompt_tokens, row.prompt_text, row.columns))
            for row in rows
        }
        requested_at = time.monotonic()
        groups = await self.asking(
            [request for _, request in requests.values()],
            self.samples_per_prompt,
            state,
            STAGE if self.stages else SAMPLES,
            self.sources,
        )
        generated = max([requested_at, *(group.generated_at or requested_at for group in groups.values())])
        step.add({"seconds/generate": generated - requested_at})
        samples = [
            sample
            for name, group in groups.items()
            for sample in samples_of(requests[name][0], group, self.sources)
        ]
        if not self.sources:
            return samples
        step.add({"seconds/score": time.monotonic() - generated})
        return rewarded(samples, self.rewards, state, step)
