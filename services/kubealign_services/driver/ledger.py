"""Groups that were asked for: what has come of each, what is missing, what is overdue. Pure: the clock is
an argument.

The first copy of a sample wins, later copies are dropped; a score counts for the copy whose digest it
names. Messages of an older fence or an older attempt are dropped: whoever made them did not know that the
group was asked for again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kubealign.v1 import rollout_pb2, scoring_pb2


@dataclass
class Group:
    """The samples of one prompt, as far as they have come."""

    group_id: str
    samples: int
    min_version: int
    deadline: float
    asked_at: float
    attempt: int = 0
    rollouts: dict[int, rollout_pb2.Rollout] = field(default_factory=dict)
    #: (sample, digest, source) -> score; a score may arrive before its rollout.
    scores: dict[tuple[int, str, str], scoring_pb2.Score] = field(default_factory=dict)
    generated_at: float | None = None
    completed_at: float | None = None

    def score(self, sample: int, source: str) -> scoring_pb2.Score:
        """The score of the kept copy of a sample. Raises KeyError where it has not come."""
        return self.scores[sample, self.rollouts[sample].sequence.digest, source]

    def complete(self, sources: Sequence[str]) -> bool:
        return len(self.rollouts) == self.samples and not self.unscored(sources)

    def unscored(self, sources: Sequence[str]) -> list[rollout_pb2.Rollout]:
        """Rollouts that have come and lack the score of one of `sources`."""
        return [
            rollout
            for sample, rollout in self.rollouts.items()
            if any((sample, rollout.sequence.digest, source) not in self.scores for source in sources)
        ]


@dataclass(frozen=True)
class Failure:
    """Why an attempt at a group came to nothing. permanent: another try cannot mend it."""

    group_id: str
    attempt: int
    cause: str
    permanent: bool = False


class Ledger:
    """The groups of one purpose under one fence."""

    def __init__(self, fence: int, purpose: str, sources: Iterable[str]) -> None:
        self.fence = fence
        self.purpose = purpose
        self.sources = tuple(sources)
        self.groups: dict[str, Group] = {}
        self.dropped = 0

    def open(self, group: Group) -> None:
        """Note that a group was asked for, in the order in which they shall be taken."""
        if group.group_id in self.groups:
            raise ValueError(f"group {group.group_id} is asked for already")
        self.groups[group.group_id] = group

    def again(self, group_id: str, deadline: float) -> Group:
        """Forget what came of a group and count one more attempt."""
        group = self.groups[group_id]
        group.attempt += 1
        group.deadline = deadline
        group.rollouts.clear()
        group.scores.clear()
        group.generated_at = group.completed_at = None
        return group

    def close(self, group_id: str) -> Group:
        """Take a group out."""
        return self.groups.pop(group_id)

    def add_rollout(self, rollout: rollout_pb2.Rollout, now: float) -> Failure | None:
        """Keep a rollout. Returns why its group failed, where it did."""
        group = self._current(rollout.fence, rollout.purpose, rollout.group_id, rollout.attempt)
        if group is None or rollout.sample in group.rollouts:
            self.dropped += 1
            return None
        if rollout.finish_reason == rollout_pb2.FINISH_REASON_FAILED:
            return Failure(
                rollout.group_id, rollout.attempt, f"rollout worker {rollout.worker}: {rollout.error}"
            )
        if rollout.sample >= group.samples:
            return Failure(
                rollout.group_id,
                rollout.attempt,
                f"rollout worker {rollout.worker} sent sample {rollout.sample} of {group.samples}",
            )
        group.rollouts[rollout.sample] = rollout
        if len(group.rollouts) == group.samples:
            group.generated_at = now
        self._note_completion(group, now)
        return None

    def add_score(self, score: scoring_pb2.Score, now: float) -> Failure | None:
        """Keep a score. Returns why its group failed, where it did."""
        group = self._current(score.fence, self.purpose, score.group_id, score.attempt)
        key = (score.sample, score.digest, score.source)
        if group is None or score.source not in self.sources or key in group.scores:
            self.dropped += 1
            return None
        if score.error:
            return Failure(score.group_id, score.attempt, score.error, permanent=score.permanent)
        group.scores[key] = score
        self._note_completion(group, now)
        return None

    def ready(self) -> list[Group]:
        """Whole groups, oldest first."""
        return [group for group in self.groups.values() if group.completed_at is not None]

    def unfinished(self) -> list[Group]:
        """Groups that are not whole, oldest first."""
        return [group for group in self.groups.values() if group.completed_at is None]

    def overdue(self, now: float) -> list[Failure]:
        """Groups that are not whole at their deadline, with what is missing."""
        return [
            Failure(
                group.group_id, group.attempt, f"after {now - group.asked_at:.0f} s {self._missing(group)}"
            )
            for group in self.groups.values()
            if group.completed_at is None and now >= group.deadline
        ]

    def concerns(self, failure: Failure) -> bool:
        """Whether a failure is of an attempt that nobody has given up since: of one attempt several samples
        may fail, and the later ones say nothing of the attempt after it."""
        group = self.groups.get(failure.group_id)
        return group is not None and group.attempt == failure.attempt

    def next_deadline(self) -> float | None:
        return min(
            (group.deadline for group in self.groups.values() if group.completed_at is None), default=None
        )

    def waiting_for(self) -> str:
        """What the groups that are not whole lack, as a person would say it."""
        open_groups = [group for group in self.groups.values() if group.completed_at is None]
        missing = sum(group.samples - len(group.rollouts) for group in open_groups)
        if missing:
            return f"{missing} samples of {len(open_groups)} groups from the rollout workers"
        absent = sorted(
            {
                source
                for group in open_groups
                for sample, rollout in group.rollouts.items()
                for source in self.sources
                if (sample, rollout.sequence.digest, source) not in group.scores
            }
        )
        return f"scores of {', '.join(absent)} for {len(open_groups)} groups" if absent else ""

    def _current(self, fence: int, purpose: str, group_id: str, attempt: int) -> Group | None:
        group = self.groups.get(group_id)
        if fence != self.fence or purpose != self.purpose or group is None or attempt != group.attempt:
            return None
        return group

    def _note_completion(self, group: Group, now: float) -> None:
        if group.completed_at is None and group.complete(self.sources):
            group.completed_at = now

    def _missing(self, group: Group) -> str:
        if len(group.rollouts) < group.samples:
            absent_samples = group.samples - len(group.rollouts)
            return f"{absent_samples} of {group.samples} samples had not come from the rollout workers"
        absent = sorted(
            source
            for source in self.sources
            if any((s, r.sequence.digest, source) not in group.scores for s, r in group.rollouts.items())
        )
        return f"no score had come from {', '.join(absent)}"
