"""Samples of the policy: records, batches, rewards and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup


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
    #: Raw scores by source; `reward` is their weighted sum.
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name that is unique in the job."""
        return f"{self.row.row}/{self.number}"

    def reward_columns(self) -> dict[str, Any]:
        """Return the sample's columns: truncated and, if it has a reward, reward and reward.NAME."""
        row = {**self.columns, "truncated": self.truncated}
        if self.reward is not None:
            row["reward"] = self.reward
            row |= {f"reward.{name}": value for name, value in self.rewards.items()}
        return row


def collect_samples(row: PreparedRow, group: RolloutGroup, sources: Sequence[str] = ()) -> list[PolicySample]:
    """Return a group's samples in order, with the score of each source."""
    return [
        replace(
            _to_sample(row, number, group.rollouts[number]),
            rewards={source: group.score(number, source).reward for source in sources},
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
