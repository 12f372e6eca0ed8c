"""Assembles complete groups into one packed batch. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.algorithms.iterative.rounds import RoundPrompt, RoundResponse
from kubealign_services.batch.auxiliary_sequences import IS_BASELINE
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.batch.reward_columns import END_OF_TURN, OF_TURNS, add_scores
from kubealign_services.batch.samples import copy_columns, mark_samples, merge_samples, name_sequences
from kubealign_services.batch.temperatures import rollout_temperature, set_temperatures
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.generation.contract import REFERENCE_VERSION
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.scoring.worker import read_reward
from kubealign_services.training.expert_routing import ROUTING, unrecorded_column

REFERENCE = "reference"


@dataclass(frozen=True)
class SamplingInfo:
    """Sampling settings of a batch.

    Args:
        temperature: Temperature of samples whose rollouts state none, 1 in place of 0.
        auxiliary_samples: Number of samples of each group, the last ones, that are marked as auxiliary:
            greedy ones, or the reference's.
        continued: New weights continued generation over keys and values of the previous weights.
    """

    temperature: float
    max_tokens: int
    auxiliary_samples: int = 0
    continued: bool = False


def assemble_batch(
    groups: Sequence[RolloutGroup],
    rewards: Sequence[str],
    sampling: SamplingInfo,
    version: int,
    reference: str | None,
) -> Batch:
    """Return the groups' samples, prompt after prompt, as one batch of S sequences and T tokens.

    A sample is one sequence, or the sequences of an episode that has several (see `batch.samples`).

    Token columns: loss_mask (uint8), behaviour_logprobs, engine_logprobs (float32, nats), weight_version
    (int32), routing (see `expert_routing`) if the engine records its experts, reference_logprobs (float32) if
    a reference, or a teacher as one, scored the samples, and the rewards of turns or steps of each of
    `rewards` that gave some, with their tokens (see `reward_columns`).
    Sequence columns: group (int64, index of the prompt), truncated (uint8), the scores of each of `rewards`
    (see `reward_columns`), companion (uint8) if auxiliary samples exist, turns and tool_errors (int32) if a
    workflow generated the samples, and sample (int64) if samples have several sequences. Scalars: max_tokens,
    version (of the weights that train on the batch), and continued (1) if generation continued across weight
    versions. The temperatures of the samples: see `batch.temperatures`.

    Args:
        reference: Source of the reference's log-probabilities among the scores; None: none are added.

    Raises:
        UnrecoverableError: The reference's log-probabilities do not fit their sequence.
    """
    parts: list[Batch] = []
    temperatures: list[float] = []
    for index, group in enumerate(groups):
        for sample in sorted(group.rollouts):
            rollout = group.rollouts[sample]
            part = decode(rollout.sequence)
            count = len(part)
            part.sample_ids = name_sequences(make_sample_id(group.group_id, sample), count)
            part.sequence_columns["group"] = torch.tensor([index] * count)
            if count == 1:
                truncated = rollout.finish_reason == rollout_pb2.FINISH_REASON_LENGTH
                part.sequence_columns["truncated"] = torch.tensor([truncated], dtype=torch.uint8)
            if sampling.auxiliary_samples:
                is_auxiliary = sample >= group.samples - sampling.auxiliary_samples
                part.sequence_columns[IS_BASELINE] = torch.tensor([is_auxiliary] * count, dtype=torch.uint8)
            if reference is not None:
                logprobs = np.frombuffer(group.score(sample, reference).logprobs, dtype="<f4")
                if len(logprobs) != len(part.tokens):
                    raise UnrecoverableError(
                        f"the {reference} sent {len(logprobs)} log-probabilities "
                        f"for the {len(part.tokens)} tokens "
                        f"of sample {part.sample_ids[0]}"
                    )
                part.token_columns["reference_logprobs"] = torch.from_numpy(logprobs.copy())
            parts.append(part)
            temperatures.append(rollout_temperature(rollout, sampling.temperature))
    _complete_routing(parts)
    mark_samples(parts)
    batch = concatenate(parts)
    samples = merge_samples(batch)
    rollouts = [group.rollouts[sample] for group in groups for sample in sorted(group.rollouts)]
    for name in rewards:
        scores = [group.score(sample, name) for group in groups for sample in sorted(group.rollouts)]
        add_scores(samples, name, [read_reward(score) for score in scores])
        _add_turn_rewards(samples, name, scores)
    if any(rollout.turns for rollout in rollouts):
        samples.sequence_columns |= _workflow_columns(rollouts)
    set_temperatures(samples, temperatures)
    copy_columns(samples, batch)
    batch.scalars |= {"max_tokens": float(sampling.max_tokens), "version": float(version)}
    if sampling.continued:
        batch.scalars["continued"] = 1.0
    return batch


def _complete_routing(parts: Sequence[Batch]) -> None:
    """Mark all tokens of samples without recorded experts, those of the reference, as without a record, where
    other samples of the batch have one.
    """
    like = next((part.token_columns[ROUTING] for part in parts if ROUTING in part.token_columns), None)
    if like is not None:
        for part in parts:
            part.token_columns.setdefault(ROUTING, unrecorded_column(like, len(part.tokens)))


def _workflow_columns(rollouts: Sequence[rollout_pb2.Rollout]) -> dict[str, torch.Tensor]:
    """Return the sequence columns of samples that a workflow generated."""
    return {
        "turns": torch.tensor([rollout.turns for rollout in rollouts], dtype=torch.int32),
        "tool_errors": torch.tensor([rollout.tool_errors for rollout in rollouts], dtype=torch.int32),
    }


def _add_turn_rewards(batch: Batch, name: str, scores: Sequence[scoring_pb2.Score]) -> None:
    """Add the token columns of the rewards that a source gave to turns or steps, if it gave any.

    Args:
        batch: With one sequence for each sample.
        scores: That of each sample.
    """
    if not any(score.steps for score in scores):
        return
    rewards = torch.zeros(len(batch.tokens), dtype=torch.float64)
    ends = torch.zeros(len(batch.tokens), dtype=torch.uint8)
    bounds = zip(batch.cu_seqlens.tolist(), batch.lengths.tolist(), strict=False)
    for score, (start, length) in zip(scores, bounds, strict=True):
        for step in score.steps:
            if step.token >= length:
                raise UnrecoverableError(
                    f"worker {score.worker} gave a reward {name} at token {step.token} "
                    f"of a sequence of {length} tokens"
                )
            rewards[start + step.token] += step.reward
            ends[start + step.token] = 1
    batch.token_columns |= {f"{OF_TURNS}{name}": rewards, f"{END_OF_TURN}{name}": ends}


def make_sample_id(group_id: str, sample: int) -> str:
    """Return the name of a sample in a batch."""
    return f"{group_id}#{sample}"


def prompt_of(sample_id: str) -> str:
    """Return the name of the prompt of a sample in a batch."""
    return sample_id.partition("#")[0]


def compute_staleness(batch: Batch, version: int) -> torch.Tensor:
    """Return the number of versions between the oldest weights that generated a token and `version`, int64
    [S]; 0 for samples of the reference, whose weights do not age.
    """
    versions = torch.where(_has_version(batch), batch.token("weight_version").long(), version)
    oldest = torch.full((len(batch),), version, dtype=torch.int64)
    return version - oldest.scatter_reduce(0, batch.sequence_of_token, versions, reduce="amin")


def _has_version(batch: Batch) -> torch.Tensor:
    """Return True for the response tokens that the policy generated, bool [T]."""
    return batch.token("loss_mask").bool() & (batch.token("weight_version") != REFERENCE_VERSION)


def has_mixed_versions(batch: Batch) -> torch.Tensor:
    """Return True for sequences whose response was generated by several weight versions, bool [S]."""
    mask, versions = batch.token("loss_mask").bool(), batch.token("weight_version").long()
    where = batch.sequence_of_token[mask]
    oldest = torch.full((len(batch),), torch.iinfo(torch.int64).max)
    newest = torch.full((len(batch),), -1, dtype=torch.int64)
    return newest.scatter_reduce(0, where, versions[mask], reduce="amax") > oldest.scatter_reduce(
        0, where, versions[mask], reduce="amin"
    )


def find_oldest_version(group: RolloutGroup) -> int:
    """Return the oldest weight version among the response tokens that the policy generated."""
    oldest: list[int] = []
    for rollout in group.rollouts.values():
        part = decode(rollout.sequence)
        versions = part.token("weight_version")[_has_version(part)]
        if len(versions):
            oldest.append(int(versions.min()))
    return min(oldest, default=group.min_version)


def to_algorithm_prompt(
    group: RolloutGroup, row: PreparedRow, rewards: Mapping[str, float | None]
) -> RoundPrompt:
    """Return a prompt with its samples.

    Args:
        rewards: By sample id; a sample without an entry has none.
    """
    responses = []
    for sample in sorted(group.rollouts):
        sequence = decode(group.rollouts[sample].sequence)
        tokens = sequence.tokens[sequence.token("loss_mask").bool()].tolist()
        name = make_sample_id(group.group_id, sample)
        responses.append(RoundResponse(name, tokens, rewards.get(name)))
    return RoundPrompt(group.group_id, row.prompt_tokens, responses, row.response_tokens)


def list_prompts(names: Sequence[str]) -> list[str]:
    """Return the prompts of the named samples, each once, in order."""
    return list(dict.fromkeys(map(prompt_of, names)))
