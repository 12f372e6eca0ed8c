"""Requests for the scores of all samples of a prompt in one call: packed by the driver, read by a worker."""

from collections.abc import Sequence

from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.validation import ValidationScore
from kubealign.v1 import batch_pb2, rollout_pb2
from kubealign_services.scoring.purposes import requested_purpose


def group_sources(job: AlignmentJob) -> frozenset[str]:
    """Return the names of the rewards and validation scores that score all samples of a prompt at once."""
    entries: list[Reward | ValidationScore] = [*job.spec.rewards, *job.spec.validation_scores]
    return frozenset(entry.name for entry in entries if entry.scores_groups)


def auxiliary_kinds(job: AlignmentJob) -> tuple[str, ...]:
    """Return the kinds of the last samples of a training prompt, which the policy is not trained on: its
    greedy sample, as a baseline, and the sample of the reference.
    """
    kinds = {"greedy_baseline": "greedy", "reference_sample": "reference"}
    algorithm = job.spec.algorithm.value
    return tuple(kind for field, kind in kinds.items() if getattr(algorithm, field, False))


def pack_group(rollouts: Sequence[rollout_pb2.Rollout], source: str) -> rollout_pb2.Rollout:
    """Return the request for the scores of a prompt's samples, which only this source takes.

    The samples have no tokens, so that the request is smaller than the rollouts: see Rollout.group.

    Args:
        rollouts: All samples of one attempt at a prompt, in any order.
    """
    first = rollouts[0]
    return rollout_pb2.Rollout(
        fence=first.fence,
        group_id=first.group_id,
        attempt=first.attempt,
        columns=first.columns,
        purpose=requested_purpose(first.purpose, source),
        group=[
            rollout_pb2.Rollout(
                sample=rollout.sample,
                sequence=batch_pb2.PackedBatch(digest=rollout.sequence.digest),
                finish_reason=rollout.finish_reason,
                response=rollout.response,
                turns=rollout.turns,
                tool_errors=rollout.tool_errors,
            )
            for rollout in sorted(rollouts, key=lambda rollout: rollout.sample)
        ],
    )


def unpack_samples(message: rollout_pb2.Rollout) -> list[rollout_pb2.Rollout]:
    """Return the rollouts of a message: the samples of a group, or the message itself if it has no group."""
    for sample in message.group:
        sample.fence, sample.group_id, sample.attempt = message.fence, message.group_id, message.attempt
        sample.columns, sample.purpose = message.columns, message.purpose
    return list(message.group) or [message]
