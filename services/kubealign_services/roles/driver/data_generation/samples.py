"""Samples of the policy: records, batches, rewards and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch

from kubealign.spec.sections.rewards import Reward
from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.reward_columns import add_scores, read_sums
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.data_generation.state import DataGenerationState
from kubealign_services.roles.driver.metrics.report import SampleText, StepRecord
from kubealign_services.roles.driver.metrics.sample_logging import SamplePreviews
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.scoring.combination import combine_rewards


@dataclass(frozen=True)
class PolicySample:
    """Response of the policy to one prompt.

    number: index among the prompt's samples, from 0. tokens: of the response. columns: further columns of
    the sample's row.
    """

    row: PreparedRow
    number: int
    text: str
    tokens: tuple[int, ...]
    truncated: bool
    #: Raw scores by source, None where a reward does not apply; `reward` is the weighted sum of those that
    #: apply, None if there are none.
    rewards: dict[str, float | None] = field(default_factory=dict)
    reward: float | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    #: By source, where a reward explains itself.
    explanations: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name that is unique in the job."""
        return f"{self.row.row}/{self.number}"

    def reward_columns(self) -> dict[str, Any]:
        """Return the sample's columns: truncated and, if the job has rewards, reward and reward.NAME, None
        where no reward, or not that reward, applies.
        """
        row = {**self.columns, "truncated": self.truncated}
        if self.rewards:
            row["reward"] = self.reward
            row |= {f"reward.{name}": value for name, value in self.rewards.items()}
        return row


def collect_samples(row: PreparedRow, group: RolloutGroup, sources: Sequence[str] = ()) -> list[PolicySample]:
    """Return a group's samples in order, with the score of each source."""
    explanations = group.explanations()
    return [
        replace(
            _to_sample(row, number, group.rollouts[number]),
            rewards={source: group.reward(number, source) for source in sources},
            explanations=explanations[number],
        )
        for number in sorted(group.rollouts)
    ]


def _to_sample(row: PreparedRow, number: int, rollout: rollout_pb2.Rollout) -> PolicySample:
    sequence = decode(rollout.sequence)
    return PolicySample(
        row=row,
        number=number,
        text=rollout.response,
        tokens=tuple(sequence.tokens[sequence.token("loss_mask").bool()].tolist()),
        truncated=rollout.finish_reason == rollout_pb2.FINISH_REASON_LENGTH,
    )


def group_by_prompt(samples: Sequence[PolicySample]) -> list[list[PolicySample]]:
    """Group the samples by prompt, in order."""
    groups: dict[int, list[PolicySample]] = {}
    for sample in samples:
        groups.setdefault(sample.row.row, []).append(sample)
    return list(groups.values())


class SampleMetrics:
    """Adds the metrics and previews of each step's samples, with or without rewards."""

    def __init__(self, previews: SamplePreviews) -> None:
        self._previews = previews

    def add_metrics(self, samples: Sequence[PolicySample], step: StepRecord) -> None:
        """Add metrics and previews to the step; a step without samples has none."""
        if not samples:
            return
        lengths = [len(sample.tokens) for sample in samples]
        step.add(
            {
                "batch/sequences": len(samples),
                "batch/tokens": sum(lengths) + sum(len(sample.row.prompt_tokens) for sample in samples),
                "response/length": fmean(lengths),
                "response/length_max": max(lengths),
                "response/truncated_share": fmean(sample.truncated for sample in samples),
            }
        )
        step.sample_texts = {
            sample.name: SampleText(sample.row.prompt_text, sample.text, sample.explanations)
            for sample in samples
        }
        self._previews.add_previews(build_batch(samples), step)


def build_batch(samples: Sequence[PolicySample]) -> Batch:
    """Pack prompt and response of each sample.

    Columns: loss_mask, truncated, weight_version and, if the samples have them, reward.NAME and rewards.
    """
    prompt_lengths = [len(sample.row.prompt_tokens) for sample in samples]
    batch = pack(
        [[*sample.row.prompt_tokens, *sample.tokens] for sample in samples],
        [sample.name for sample in samples],
    )
    mask = [
        bit
        for prompt_length, sample in zip(prompt_lengths, samples, strict=True)
        for bit in [0] * prompt_length + [1] * len(sample.tokens)
    ]
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)
    batch.token_columns["weight_version"] = torch.zeros(len(mask), dtype=torch.int32)
    batch.sequence_columns["truncated"] = torch.tensor(
        [sample.truncated for sample in samples], dtype=torch.uint8
    )
    for name in samples[0].rewards:
        add_scores(batch, name, [sample.rewards[name] for sample in samples])
    if any(sample.reward is not None for sample in samples):
        rewards = [sample.reward or 0.0 for sample in samples]
        batch.sequence_columns["rewards"] = torch.tensor(rewards, dtype=torch.float32)
    return batch


def add_rewards(
    samples: Sequence[PolicySample], rewards: Sequence[Reward], state: DataGenerationState, step: StepRecord
) -> list[PolicySample]:
    """Return the samples with the weighted sum of their scores, as in a job that trains; a sample to which
    no reward applies has none.

    The moments of standardised rewards are kept in the state.
    """
    if not samples or not rewards:
        return list(samples)
    batch = build_batch(samples)
    step.add(combine_rewards(batch, rewards, state.step, state.rewards))
    return [replace(sample, reward=value) for sample, value in zip(samples, read_sums(batch), strict=True)]
