"""Group tracker, message by message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.v1 import batch_pb2, rollout_pb2, scoring_pb2
from kubealign_services.messaging.contract import DiscardedMessages
from kubealign_services.messaging.retention_limits import Bounds
from kubealign_services.roles.driver.rollouts.group_tracker import GroupTracker, RolloutGroup

FENCE = 7


def rollout(
    sample: int, digest: str = "d", group: str = "0/1", attempt: int = 0, fence: int = FENCE
) -> rollout_pb2.Rollout:
    return rollout_pb2.Rollout(
        fence=fence,
        group_id=group,
        attempt=attempt,
        sample=sample,
        purpose="train",
        worker="rollout-0",
        sequence=batch_pb2.PackedBatch(digest=digest),
        finish_reason=rollout_pb2.FINISH_REASON_STOP,
    )


def score(
    sample: int, digest: str = "d", source: str = "exact", group: str = "0/1", attempt: int = 0
) -> scoring_pb2.Score:
    return scoring_pb2.Score(
        fence=FENCE, group_id=group, attempt=attempt, sample=sample, digest=digest, source=source, reward=1.0
    )


def ledger(samples: int = 2, sources: tuple[str, ...] = ("exact",)) -> GroupTracker:
    opened = GroupTracker(FENCE, "train", sources)
    opened.add(RolloutGroup("0/1", samples, min_version=0, deadline=10.0, requested_at=0.0))
    return opened


def test_a_group_is_complete_when_every_sample_has_every_score() -> None:
    it = ledger(samples=2, sources=("exact", "reference"))
    for sample in (0, 1):
        assert it.add_rollout(rollout(sample), now=1.0) is None
    for sample, source in ((0, "exact"), (1, "exact"), (0, "reference")):
        assert it.add_score(score(sample, source=source), now=2.0) is None
        assert it.list_complete() == []
    it.add_score(score(1, source="reference"), now=3.0)
    (group,) = it.list_complete()
    assert (group.generated_at, group.completed_at) == (1.0, 3.0)


def test_explanations_are_those_of_the_kept_copies() -> None:
    it = ledger(samples=2, sources=("exact", "style"))
    for sample, digest in ((0, "first"), (0, "second"), (1, "d")):
        it.add_rollout(rollout(sample, digest=digest), now=1.0)
    for sample, digest, source, text in (
        (0, "first", "exact", "read 1"),
        (0, "second", "exact", "read 2"),
        (0, "first", "style", "terse"),
        (1, "d", "exact", ""),
        (2, "d", "exact", "no such sample"),
    ):
        explained = score(sample, digest, source)
        explained.explanation = text
        it.add_score(explained, now=1.0)
    assert it.groups["0/1"].explanations() == {0: {"exact": "read 1", "style": "terse"}, 1: {}}


def test_the_first_copy_of_a_sample_wins_and_scores_count_for_it_alone() -> None:
    it = ledger(samples=1)
    it.add_rollout(rollout(0, digest="first"), now=1.0)
    it.add_rollout(rollout(0, digest="second"), now=1.0)
    it.add_score(score(0, digest="second"), now=1.0)
    assert it.list_complete() == []
    it.add_score(score(0, digest="first"), now=1.0)
    assert [group.group_id for group in it.list_complete()] == ["0/1"]
    assert it.groups["0/1"].score(0, "exact").digest == "first"


def test_a_score_may_arrive_before_its_rollout() -> None:
    it = ledger(samples=1)
    it.add_score(score(0), now=1.0)
    it.add_rollout(rollout(0), now=2.0)
    assert len(it.list_complete()) == 1


@pytest.mark.parametrize(
    "late",
    [rollout(0, fence=FENCE - 1), rollout(0, attempt=1), rollout(0, group="0/9")],
    ids=["older fence", "other attempt", "unknown group"],
)
def test_unrequested_messages_are_dropped(late: rollout_pb2.Rollout) -> None:
    it = ledger(samples=1)
    it.add_rollout(late, now=1.0)
    assert it.groups["0/1"].rollouts == {}
    assert it.dropped_messages == 1


def test_a_retry_discards_the_first_attempt() -> None:
    it = ledger(samples=2)
    it.add_rollout(rollout(0), now=1.0)
    it.reset_for_retry("0/1", deadline=20.0)
    it.add_rollout(rollout(1), now=2.0)
    assert it.groups["0/1"].rollouts == {}
    it.add_rollout(rollout(1, attempt=1), now=2.0)
    assert list(it.groups["0/1"].rollouts) == [1]


def test_a_failed_sample_carries_its_cause() -> None:
    it = ledger()
    failed = rollout(0)
    failed.finish_reason = rollout_pb2.FINISH_REASON_FAILED
    failed.error = "the prompt has 9 tokens, the context 8"
    failure = it.add_rollout(failed, now=1.0)
    assert failure is not None
    assert failure.cause == "rollout worker rollout-0: the prompt has 9 tokens, the context 8"


def test_a_failure_counts_after_the_first_sample_of_its_group() -> None:
    it = ledger()
    it.add_rollout(rollout(0), now=1.0)
    failed = rollout(0)
    failed.finish_reason, failed.error = rollout_pb2.FINISH_REASON_FAILED, "the environment was lost"
    failure = it.add_rollout(failed, now=2.0)
    assert failure is not None and "the environment was lost" in failure.cause
    assert it.dropped_messages == 0


def test_a_scores_error_keeps_whether_it_is_permanent() -> None:
    it = ledger()
    wrong = score(0)
    wrong.error, wrong.permanent = "reward exact returned 3 numbers for 2 responses", True
    failure = it.add_score(wrong, now=1.0)
    assert failure is not None and failure.permanent


def test_overdue_groups_name_what_is_missing() -> None:
    it = ledger(samples=2)
    it.add_rollout(rollout(0), now=1.0)
    assert it.list_overdue(now=9.0) == []
    (failure,) = it.list_overdue(now=10.0)
    assert failure.cause == "after 10 s 1 of 2 samples had not come from the rollout workers"
    it.add_rollout(rollout(1), now=10.0)
    (failure,) = it.list_overdue(now=11.0)
    assert failure.cause == "after 11 s no score had come from exact"


def test_overdue_groups_name_what_the_bus_has_discarded_since_their_request() -> None:
    it = ledger(samples=1)
    it.add_rollout(rollout(0), now=1.0)
    bounds = Bounds(messages=65536, size_bytes=4096)
    it.add_discards(DiscardedMessages("work", "rollout", 9, bounds), now=-1.0)
    it.add_discards(DiscardedMessages("rollouts", "reward-exact", 3, bounds), now=2.0)
    it.add_discards(DiscardedMessages("rollouts", "reward-exact", 4, bounds), now=3.0)
    (failure,) = it.list_overdue(now=10.0)
    assert failure.cause == (
        "after 10 s no score had come from exact; the bus has discarded 7 messages of rollouts that "
        "reward-exact had not received, as rollouts keeps 4096 bytes and 65536 messages at most: raise the "
        "replicas of reward-exact, or have fewer samples in flight (promptsPerStep, samplesPerPrompt, "
        "maxStaleness)"
    )


messages = st.lists(
    st.one_of(
        st.builds(rollout, st.integers(0, 2), st.sampled_from(["a", "b"]), attempt=st.integers(0, 1)),
        st.builds(score, st.integers(0, 2), st.sampled_from(["a", "b"]), attempt=st.integers(0, 1)),
    ),
    max_size=30,
)


@given(messages)
def test_a_complete_group_has_one_rollout_and_its_score_for_every_sample(arrivals: list[object]) -> None:
    it = ledger(samples=3)
    for message in arrivals:
        if isinstance(message, rollout_pb2.Rollout):
            it.add_rollout(message, now=1.0)
        elif isinstance(message, scoring_pb2.Score):
            it.add_score(message, now=1.0)
    for group in it.list_complete():
        assert sorted(group.rollouts) == [0, 1, 2]
        for sample, stored in group.rollouts.items():
            assert stored.attempt == group.attempt
            assert group.score(sample, "exact").digest == stored.sequence.digest
