"""Whole groups -> one packed batch. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kubealign.v1 import rollout_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.companions import COMPANION
from kubealign_services.batch.packed import Batch, concatenate
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.ledger import Group

REFERENCE = "reference"


@dataclass(frozen=True)
class Sampled:
    """How the samples of a batch were made. greedy_samples: of each group, the last ones. continued: whether
    new weights went on over keys and values of the ones before."""

    temperature: float
    max_tokens: int
    greedy_samples: int = 0
    continued: bool = False


def assemble(
    groups: Sequence[Group], rewards: Sequence[str], sampled: Sampled, version: int, reference: bool
) -> Batch:
    """The groups' samples, prompt after prompt, as one batch of S sequences and T tokens.

    Token columns: loss_mask (uint8), behaviour_logprobs, engine_logprobs (float32, nats), weight_version
    (int32), and reference_logprobs (float32) where a reference scored. Sequence columns: group (int64,
    index of the prompt), truncated (uint8), reward.NAME (float64) for each of `rewards`, and companion
    (uint8) where there are greedy samples, turns and tool_errors (int32) where a workflow made them.
    Scalars: temperature, max_tokens, version (of the weights that train on it), and continued (1) where the
    samples were. Raises JobFailed when the reference's log-probabilities do not fit their sequence.
    """
    parts: list[Batch] = []
    for index, group in enumerate(groups):
        for sample in sorted(group.rollouts):
            rollout = group.rollouts[sample]
            part = decode(rollout.sequence)
            part.sample_ids = [sample_id(group.group_id, sample)]
            part.sequence_columns["group"] = torch.tensor([index])
            truncated = rollout.finish_reason == rollout_pb2.FINISH_REASON_LENGTH
            part.sequence_columns["truncated"] = torch.tensor([truncated], dtype=torch.uint8)
            if sampled.greedy_samples:
                greedy = sample >= group.samples - sampled.greedy_samples
                part.sequence_columns[COMPANION] = torch.tensor([greedy], dtype=torch.uint8)
            for name in rewards:
                value = group.score(sample, name).reward
                part.sequence_columns[f"reward.{name}"] = torch.tensor([value], dtype=torch.float64)
            if reference:
                logprobs = np.frombuffer(group.score(sample, REFERENCE).logprobs, dtype="<f4")
                if len(logprobs) != len(part.tokens):
                    raise JobFailed(
                        f"the reference sent {len(logprobs)} log-probabilities "
                        f"for the {len(part.tokens)} tokens "
                        f"of sample {part.sample_ids[0]}"
                    )
                part.token_columns["reference_logprobs"] = torch.from_numpy(logprobs.copy())
            parts.append(part)
    batch = concatenate(parts)
    if any(rollout.turns for group in groups for rollout in group.rollouts.values()):
        batch.sequence_columns |= _turns(groups)
    batch.scalars |= {
        "temperature": sampled.temperature,
        "max_tokens": float(sampled.max_tokens),
        "version": float(version),
    }
    if sampled.continued:
        batch.scalars["continued"] = 1.0
    return batch


def _turns(groups: Sequence[Group]) -> dict[str, torch.Tensor]:
    rollouts = [group.rollouts[sample] for group in groups for sample in sorted(group.rollouts)]
    return {
        "turns": torch.tensor([rollout.turns for rollout in rollouts], dtype=torch.int32),
        "tool_errors": torch.tensor([rollout.tool_errors for rollout in rollouts], dtype=torch.int32),
    }


def sample_id(group_id: str, sample: int) -> str:
    """The name of a sample in a batch."""
    return f"{group_id}#{sample}"


def staleness(batch: Batch, version: int) -> torch.Tensor:
    """int64 [S]: versions between the oldest weights that made a token of the sequence and those that train
    on it."""
    made_with = torch.where(batch.token("loss_mask").bool(), batch.token("weight_version").long(), version)
    oldest = torch.full((len(batch),), version, dtype=torch.int64)
    return version - oldest.scatter_reduce(0, batch.sequence_of_token, made_with, reduce="amin")


def mixed(batch: Batch) -> torch.Tensor:
    """bool [S]: whether several versions of the weights made the sequence's response."""
    mask, versions = batch.token("loss_mask").bool(), batch.token("weight_version").long()
    where = batch.sequence_of_token[mask]
    oldest = torch.full((len(batch),), torch.iinfo(torch.int64).max)
    newest = torch.full((len(batch),), -1, dtype=torch.int64)
    return newest.scatter_reduce(0, where, versions[mask], reduce="amax") > oldest.scatter_reduce(
        0, where, versions[mask], reduce="amin"
    )


def oldest_version(group: Group) -> int:
    """The oldest weight version among the group's response tokens."""
    oldest: list[int] = []
    for rollout in group.rollouts.values():
        part = decode(rollout.sequence)
        versions = part.token("weight_version")[part.token("loss_mask").bool()]
        if len(versions):
            oldest.append(int(versions.min()))
    return min(oldest, default=group.min_version)
