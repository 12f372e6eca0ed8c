"""Requests for the scores of all samples of a prompt."""

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign.v1 import batch_pb2, rollout_pb2
from kubealign_services.scoring.group_requests import (
    auxiliary_kinds,
    group_sources,
    pack_group,
    unpack_samples,
)
from kubealign_services.scoring.purposes import scored_purposes
from support.bad_specs import whole_job

GROUP_REWARD = {"name": "rank", "function": {"module": "m:f"}, "scope": "Group"}


def rollout(sample: int) -> rollout_pb2.Rollout:
    return rollout_pb2.Rollout(
        fence=3,
        group_id="0/7",
        attempt=2,
        sample=sample,
        worker="rollout-0",
        sequence=batch_pb2.PackedBatch(columns=b"tokens" * 100, digest=f"digest-{sample}"),
        finish_reason=rollout_pb2.FINISH_REASON_LENGTH,
        columns=b'{"prompt": "p", "columns": {"answer": 4}}',
        purpose="train",
        response=f"response {sample}",
        turns=2,
        tool_errors=1,
    )


def test_the_samples_of_a_request_are_the_rollouts_without_their_tokens() -> None:
    message = pack_group([rollout(sample) for sample in (2, 0, 1)], "rank")
    assert (message.fence, message.group_id, message.attempt) == (3, "0/7", 2)
    assert message.purpose == "train@rank"
    assert b"tokens" not in message.SerializeToString()
    assert message.SerializeToString().count(b"answer") == 1
    samples = unpack_samples(rollout_pb2.Rollout.FromString(message.SerializeToString()))
    for sample, received in enumerate(samples):
        expected = rollout(sample)
        expected.purpose = "train@rank"
        expected.ClearField("worker")
        expected.sequence.ClearField("columns")
        assert received == expected
    assert len(samples) == 3


def test_a_rollout_alone_is_itself() -> None:
    assert unpack_samples(rollout(1)) == [rollout(1)]


@pytest.mark.parametrize(
    ("algorithm", "kinds"), [("rloo", ()), ("remax", ("greedy",)), ("xpo", ("reference",))]
)
def test_the_last_samples_of_a_prompt_may_be_auxiliary(algorithm: str, kinds: tuple[str, ...]) -> None:
    changes = {"spec.algorithm": {algorithm: {}}, "spec.rollout": {"engine": {"torch": {}}}}
    assert auxiliary_kinds(AlignmentJob.model_validate(whole_job("rloo", changes))) == kinds


@pytest.mark.parametrize("on_arrival", [True, False])
def test_an_entry_that_scores_groups_takes_requests_only(on_arrival: bool) -> None:
    score = GROUP_REWARD | {"name": "spread"}
    job = AlignmentJob.model_validate(
        whole_job(
            "rloo",
            {
                "spec.rewards": [GROUP_REWARD, {"name": "exact", "function": {"module": "m:g"}}],
                "spec.overlap": {"scoreOnArrival": on_arrival},
                "spec.validation": {
                    "data": {"prompts": {"source": {"path": "held-out.jsonl"}}},
                    "sampling": {"scores": [score]},
                },
            },
        )
    )
    assert group_sources(job) == {"rank", "spread"}
    purposes = [scored_purposes(job, entry) for entry in (*job.spec.rewards, *job.spec.validation_scores)]
    assert purposes == [
        {"train@rank", "validation@rank"},
        {"train" if on_arrival else "train@exact", "validation"},
        {"validation@spread"},
    ]
