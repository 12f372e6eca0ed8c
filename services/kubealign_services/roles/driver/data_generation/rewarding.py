"""Combines the scores of samples into rewards. Pure except for the state."""

from collections.abc import Sequence
from dataclasses import replace

from kubealign.spec.sections.rewards import Reward
from kubealign_services.roles.driver.data_generation.sample_metrics import build_batch
from kubealign_services.roles.driver.data_generation.samples import PolicySample
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import StepRecord
from kubealign_services.scoring.combination import combine_rewards


def add_rewards(
    samples: Sequence[PolicySample], rewards: Sequence[Reward], state: DataGenerationState, step: StepRecord
) -> list[PolicySample]:
    """Return the samples with the weighted sum of their scores, as in a job that trains.

    The moments of standardised rewards are kept in the state.
    """
    if not samples or not rewards:
        return list(samples)
    batch = build_batch(samples)
    step.add(combine_rewards(batch, rewards, state.step, state.rewards))
    sums = batch.sequence("rewards").tolist()
    return [replace(sample, reward=value) for sample, value in zip(samples, sums, strict=True)]
