"""Tracks requested groups: arrived samples and scores, missing ones, deadlines.

Pure: the clock is an argument.

The first copy of a sample wins and later copies are dropped; a score counts for the copy whose digest it
names. Messages of an older fence or attempt are dropped: their senders did not know that the group was
requested again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.batch.reward_columns import weighted_sum
from kubealign_services.messaging.contract import DiscardedMessages
from kubealign_services.scoring.worker import empty_score, read_reward


@dataclass
class RolloutGroup:
    """Samples of one prompt that have arrived so far."""

    group_id: str
    samples: int
    min_version: int
    deadline: float
    requested_at: float
    attempt: int = 0
    #: Time from which workers skip the work item, and number of times that an attempt was published again.
    item_deadline: float = 0.0
    renewals: int = 0
    rollouts: dict[int, rollout_pb2.Rollout] = field(default_factory=dict)
    #: (sample, digest, source) -> score; a score may arrive before its rollout.
    scores: dict[tuple[int, str, str], scoring_pb2.Score] = field(default_factory=dict)
    #: Scorers that were requested to score the complete batch of this attempt; see BatchScoring.
    requested_sources: set[str] = field(default_factory=set)
    generated_at: float | None = None
    completed_at: float | None = None

    def score(self, sample: int, source: str) -> scoring_pb2.Score:
        """Return the score of the kept copy of a sample. Raises KeyError if it has not arrived."""
        return self.scores[sample, self.rollouts[sample].sequence.digest, source]

    def reward(self, sample: int, source: str) -> float | None:
        """Return the reward of the kept copy of a sample; None where it does not apply to the sample.

        Raises KeyError if the score has not arrived.
        """
        return read_reward(self.score(sample, source))

    def explanations(self) -> dict[int, dict[str, str]]:
        """Return sample -> source -> explanation of its kept copy, for the scores that have one."""
        explanations: dict[int, dict[str, str]] = {sample: {} for sample in self.rollouts}
        for (sample, digest, source), score in self.scores.items():
            rollout = self.rollouts.get(sample)
            if score.explanation and rollout is not None and rollout.sequence.digest == digest:
                explanations[sample][source] = score.explanation
        return explanations

    def weighted_reward(self, sample: int, weights: Mapping[str, float]) -> float | None:
        """Return the weighted sum of the rewards of a sample; None if none of them applies to it.

        Args:
            weights: Source -> weight.
        """
        return weighted_sum({name: self.reward(sample, name) for name in weights}, weights)

    def is_complete(self, sources: Sequence[str]) -> bool:
        """Return True if all samples and their scores from `sources` have arrived."""
        return len(self.rollouts) == self.samples and not self.list_unscored(sources)

    def list_unscored(self, sources: Sequence[str]) -> list[rollout_pb2.Rollout]:
        """Return the arrived rollouts that lack a score from one of `sources`."""
        return [
            rollout
            for sample, rollout in self.rollouts.items()
            if any((sample, rollout.sequence.digest, source) not in self.scores for source in sources)
        ]


@dataclass(frozen=True)
class GroupFailure:
    """Cause of a failed attempt at a group.

    permanent: a retry would not help. overdue: the group is incomplete at its deadline.
    """

    group_id: str
    attempt: int
    cause: str
    permanent: bool = False
    overdue: bool = False


class GroupTracker:
    """Groups of one purpose under one fence.

    `incomplete` are those that lack samples or scores, in the order of their latest request: rounds have many
    more groups than are incomplete at a time. `last_completed_at` is the time at which the newest of the
    complete groups was completed; None if no group was.
    """

    def __init__(self, fence: int, purpose: str, sources: Iterable[str]) -> None:
        self.fence = fence
        self.purpose = purpose
        self.sources = tuple(sources)
        self.groups: dict[str, RolloutGroup] = {}
        self.incomplete: dict[str, RolloutGroup] = {}
        self.last_completed_at: float | None = None
        self.dropped_messages = 0
        # (subject, consumer) -> time of the last loss, and its bounds with the count of all losses.
        self._discards: dict[tuple[str, str], tuple[float, DiscardedMessages]] = {}

    def add(self, group: RolloutGroup) -> None:
        """Add a requested group. Groups are taken in the order in which they are added."""
        if group.group_id in self.groups:
            raise ValueError(f"group {group.group_id} is requested already")
        self.groups[group.group_id] = group
        self.incomplete[group.group_id] = group

    def reset_for_retry(self, group_id: str, deadline: float) -> RolloutGroup:
        """Discard the results of a group and count one more attempt."""
        group = self.groups[group_id]
        group.attempt += 1
        group.deadline = deadline
        group.rollouts.clear()
        group.scores.clear()
        group.requested_sources.clear()
        group.generated_at = group.completed_at = None
        self.incomplete.pop(group_id, None)
        self.incomplete[group_id] = group
        return group

    def remove(self, group_id: str) -> RolloutGroup:
        """Remove a group and return it."""
        self.incomplete.pop(group_id, None)
        return self.groups.pop(group_id)

    def clear(self) -> None:
        """Remove all groups."""
        self.groups.clear()
        self.incomplete.clear()

    def add_rollout(self, rollout: rollout_pb2.Rollout, now: float) -> GroupFailure | None:
        """Add a rollout. Return the failure of its group, if any."""
        group = self._find_current(rollout.fence, rollout.purpose, rollout.group_id, rollout.attempt)
        is_failed = rollout.finish_reason == rollout_pb2.FINISH_REASON_FAILED
        # A failed rollout names no sample: other samples of the group may have arrived before it.
        if group is None or (rollout.sample in group.rollouts and not is_failed):
            self.dropped_messages += 1
            return None
        if is_failed:
            return GroupFailure(
                rollout.group_id, rollout.attempt, f"rollout worker {rollout.worker}: {rollout.error}"
            )
        if rollout.sample >= group.samples:
            return GroupFailure(
                rollout.group_id,
                rollout.attempt,
                f"rollout worker {rollout.worker} sent sample {rollout.sample} of {group.samples}",
            )
        group.rollouts[rollout.sample] = rollout
        for score in episode_scores(rollout):
            group.scores[score.sample, score.digest, score.source] = score
        if len(group.rollouts) == group.samples:
            group.generated_at = now
        self._mark_if_complete(group, now)
        return None

    def add_score(self, score: scoring_pb2.Score, now: float) -> GroupFailure | None:
        """Add a score. Return the failure of its group, if any."""
        group = self._find_current(score.fence, self.purpose, score.group_id, score.attempt)
        key = (score.sample, score.digest, score.source)
        if group is None or score.source not in self.sources or key in group.scores:
            self.dropped_messages += 1
            return None
        if score.error:
            return GroupFailure(score.group_id, score.attempt, score.error, permanent=score.permanent)
        group.scores[key] = score
        self._mark_if_complete(group, now)
        return None

    def add_discards(self, discarded: DiscardedMessages, now: float) -> None:
        """Add messages that the bus has discarded, for the failures of groups that may lack them."""
        key = (discarded.subject, discarded.consumer)
        if key in self._discards:
            total = self._discards[key][1].count + discarded.count
            discarded = replace(discarded, count=total)
        self._discards[key] = (now, discarded)

    def list_complete(self) -> list[RolloutGroup]:
        """Return the complete groups, oldest first."""
        return [group for group in self.groups.values() if group.completed_at is not None]

    def list_incomplete(self) -> list[RolloutGroup]:
        """Return the incomplete groups, in the order of their latest request."""
        return list(self.incomplete.values())

    def list_overdue(self, now: float) -> list[GroupFailure]:
        """Return the failures of groups that are incomplete at their deadline, each with what is missing."""
        return [
            GroupFailure(
                group.group_id,
                group.attempt,
                f"after {now - group.requested_at:.0f} s {self._describe_group(group)}"
                f"{self._describe_discards(group)}",
                overdue=True,
            )
            for group in self.incomplete.values()
            if now >= group.deadline
        ]

    def is_current(self, failure: GroupFailure) -> bool:
        """Return True if a failure belongs to the current attempt of its group.

        Several samples of one attempt may fail, and the later failures say nothing about the next attempt.
        """
        group = self.groups.get(failure.group_id)
        return group is not None and group.attempt == failure.attempt

    def find_next_deadline(self) -> float | None:
        """Return the earliest deadline of an incomplete group, or None."""
        return min((group.deadline for group in self.incomplete.values()), default=None)

    def describe_missing(self) -> str:
        """Describe in plain English what the incomplete groups lack."""
        open_groups = self.list_incomplete()
        missing = sum(group.samples - len(group.rollouts) for group in open_groups)
        if missing:
            return f"{missing} samples of {len(open_groups)} groups from the rollout workers"
        missing_sources = sorted(
            {
                source
                for group in open_groups
                for sample, rollout in group.rollouts.items()
                for source in self.sources
                if (sample, rollout.sequence.digest, source) not in group.scores
            }
        )
        if not missing_sources:
            return ""
        return f"scores of {', '.join(missing_sources)} for {len(open_groups)} groups"

    def _find_current(self, fence: int, purpose: str, group_id: str, attempt: int) -> RolloutGroup | None:
        """Return the group if the message belongs to its current attempt, else None."""
        group = self.groups.get(group_id)
        if fence != self.fence or purpose != self.purpose or group is None or attempt != group.attempt:
            return None
        return group

    def _mark_if_complete(self, group: RolloutGroup, now: float) -> None:
        """Record the completion time of a group that has just become complete."""
        if group.completed_at is None and group.is_complete(self.sources):
            group.completed_at = self.last_completed_at = now
            del self.incomplete[group.group_id]

    def _describe_group(self, group: RolloutGroup) -> str:
        """Describe what one overdue group lacks."""
        if len(group.rollouts) < group.samples:
            missing_count = group.samples - len(group.rollouts)
            return f"{missing_count} of {group.samples} samples had not come from the rollout workers"
        missing_sources = sorted(
            source
            for source in self.sources
            if any((s, r.sequence.digest, source) not in group.scores for s, r in group.rollouts.items())
        )
        return f"no score had come from {', '.join(missing_sources)}"

    def _describe_discards(self, group: RolloutGroup) -> str:
        """Describe the messages that the bus has discarded since the group was requested; else empty."""
        discards = [discarded for time, discarded in self._discards.values() if time >= group.requested_at]
        return "".join(f"; {describe_discards(discarded)}" for discarded in discards)


def episode_scores(rollout: rollout_pb2.Rollout) -> Iterator[scoring_pb2.Score]:
    """Yield the rewards that a rollout brings with it, as scores."""
    for reward in rollout.episode_rewards:
        score = empty_score(rollout, reward.source, rollout.worker)
        if reward.HasField("reward"):
            score.reward = reward.reward
        score.metrics.update(reward.metrics)
        score.explanation = reward.explanation
        score.steps.extend(reward.turns)
        yield score


def describe_discards(discarded: DiscardedMessages) -> str:
    """Describe lost messages, with their cause and the remedy."""
    consumer, bounds = discarded.consumer, discarded.bounds
    remedy = "" if consumer == "driver" else f"raise the replicas of {consumer}, or "
    return (
        f"the bus has discarded {discarded.count} messages of {discarded.subject} that {consumer} had not "
        f"received, as {discarded.subject} keeps {bounds.size_bytes} bytes and {bounds.messages} messages at "
        f"most: {remedy}have fewer samples in flight (promptsPerStep, samplesPerPrompt, maxStaleness)"
    )
