"""Combines the scores of samples into rewards. Pure except for the state."""

from collections.abc import Sequence
from dataclasses import replace

from kubealign.spec.rewards import Reward
from kubealign_services.driver.making.figures import batch_of
from kubealign_services.driver.making.samples import Sample
from kubealign_services.driver.making.state import MakingState
from kubealign_services.driver.report import StepFigures
from kubealign_services.scoring.combination import combine


def rewarded(
    samples: Sequence[Sample], rewards: Sequence[Reward], state: MakingState, step: StepFigures
) -> list[Sample]:
    """Return the samples with the weighted sum of their scores, as in a job that trains.

    The moments of standardised rewards are kept in the state.
    """
    if not samples or not rewards:
        return list(samples)
    batch = batch_of(samples)
    step.add(combine(batch, rewards, state.step, state.rewards))
    sums = batch.sequence("rewards").tolist()
    return [replace(sample, reward=value) for sample, value in zip(samples, sums, strict=True)]
