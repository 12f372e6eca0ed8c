"""Converts the episodes of a workflow to rollout messages. Pure."""

from collections.abc import Mapping, Sequence

import torch

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.packed import concatenate
from kubealign_services.batch.samples import TRUNCATED, name_sequences
from kubealign_services.generation.contract import FinishReason, GeneratedSample
from kubealign_services.roles.rollout.messages import GroupPart, to_rollout, to_sequence
from kubealign_services.roles.rollout.workflow.episode import Episode, Transcript


def episode_to_rollout(
    item: rollout_pb2.WorkItem,
    part: GroupPart,
    index: int,
    sequences: Sequence[Episode],
    worker: str,
    episode_rewards: Mapping[str, str],
) -> rollout_pb2.Rollout:
    """Return the message of an episode: all its sequences, with the text and the end of the last one.

    Args:
        index: Index of the sample in the part.
        sequences: Sequences of the episode with a response, one at least, in order.
        episode_rewards: Reward of the job -> name under which episodes give it.
    """
    samples = [_to_sample(sequence.transcript, part, index) for sequence in sequences]
    name = f"{item.group_id}#{part.first_sample + index}"
    batches = [
        to_sequence(sequence.prompt_tokens, sample, name, sequence.transcript.loss_mask)
        for sequence, sample in zip(sequences, samples, strict=True)
    ]
    if len(batches) > 1:
        samples[-1].seconds = sum(sample.seconds for sample in samples)
        names = name_sequences(name, len(batches))
        for batch, sample, sequence_name in zip(batches, samples, names, strict=True):
            batch.sample_ids = [sequence_name]
            is_truncated = sample.finish is FinishReason.LENGTH
            batch.sequence_columns[TRUNCATED] = torch.tensor([is_truncated], dtype=torch.uint8)
    rollout = to_rollout(item, samples[-1], worker, part.first_sample, sequences=concatenate(batches))
    rollout.turns = sum(sequence.transcript.turns for sequence in sequences)
    rollout.tool_errors = sum(sequence.transcript.tool_errors for sequence in sequences)
    rollout.episode_rewards.extend(
        to_episode_reward(source, reward_name, sequences) for source, reward_name in episode_rewards.items()
    )
    return rollout


def to_episode_reward(source: str, name: str, sequences: Sequence[Episode]) -> rollout_pb2.EpisodeReward:
    """Return the message of the reward that a workflow has given under a name, in all sequences.

    Args:
        source: Name of the job's reward.
        sequences: As in `episode_to_rollout`.
    """
    message = rollout_pb2.EpisodeReward(source=source)
    first_token, total = 0, 0.0
    for sequence in sequences:
        first_response_token = first_token + len(sequence.prompt_tokens)
        reward = sequence.transcript.rewards.get(name)
        if reward is not None:
            total += reward.total
            message.reward = total
            message.turns.extend(
                rollout_pb2.TurnReward(token=first_response_token + position - 1, reward=value)
                for position, value in reward.turns
            )
            message.metrics.update(reward.metrics)
            message.explanation = reward.explanation or message.explanation
        first_token = first_response_token + len(sequence.transcript.tokens)
    return message


def _to_sample(transcript: Transcript, part: GroupPart, index: int) -> GeneratedSample:
    return GeneratedSample(
        request_id=part.request.request_id,
        sample=index,
        tokens=transcript.tokens,
        behaviour_logprobs=transcript.behaviour_logprobs,
        engine_logprobs=transcript.engine_logprobs,
        versions=transcript.versions,
        finish=FinishReason.LENGTH if transcript.truncated else FinishReason.STOP,
        text=transcript.text,
        seconds=transcript.seconds,
        routing=transcript.routing,
    )
