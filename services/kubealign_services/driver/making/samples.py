"""A policy's response to one prompt, and what is known of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.ledger import Group


@dataclass(frozen=True)
class Sample:
    """number: among those of its prompt, from 0. tokens: the response's. columns: what its row says beside
    prompt and response."""

    row: PreparedRow
    number: int
    text: str
    tokens: tuple[int, ...]
    truncated: bool
    #: By source, as they came; and their weighted sum.
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique in the job."""
        return f"{self.row.row}/{self.number}"

    def judged(self) -> dict[str, Any]:
        """Its columns: truncated, and where it is rewarded reward and reward.NAME."""
        found = {**self.columns, "truncated": self.truncated}
        if self.reward is not None:
            found["reward"] = self.reward
            found |= {f"reward.{name}": value for name, value in self.rewards.items()}
        return found


def samples_of(row: PreparedRow, group: Group, sources: Sequence[str] = ()) -> list[Sample]:
    """A group's samples, in their order, with what each of the sources says of them."""
    return [
        replace(
            _sample(row, number, group.rollouts[number]),
            rewards={source: group.score(number, source).reward for source in sources},
        )
        for number in sorted(group.rollouts)
    ]


def _sample(row: PreparedRow, number: int, rollout: rollout_pb2.Rollout) -> Sample:
    sequence = decode(rollout.sequence)
    return Sample(
        row=row,
        number=number,
        text=rollout.response,
        tokens=tuple(sequence.tokens[sequence.token("loss_mask").bool()].tolist()),
        truncated=rollout.finish_reason == rollout_pb2.FINISH_REASON_LENGTH,
    )


def by_prompt(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples of each prompt together, in their order."""
    groups: dict[int, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.row.row, []).append(sample)
    return list(groups.values())
