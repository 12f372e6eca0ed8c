"""A synthetic batch with the shape of a step's batch and random responses."""

import math

import torch

from kubealign.spec.job import AlignmentJob
from kubealign_services.batch.auxiliary_sequences import IS_BASELINE
from kubealign_services.batch.packed import Batch, pack

_SEED = 20_261


def synthetic_batch(
    prompts: list[list[int]], lengths: list[int], samples: int, vocabulary: int, job: AlignmentJob
) -> Batch:
    """Build a batch with one sequence for each length, `samples` consecutive ones per prompt, and the columns
    of a sampled batch with combined rewards, and with a teacher's candidates if the algorithm has a teacher.
    Tokens, log-probabilities and rewards are random.
    """
    generator = torch.Generator().manual_seed(_SEED)
    algorithm, rollout = job.spec.algorithm.value, job.spec.rollout
    sequences, mask = [], []
    for index, length in enumerate(lengths):
        prompt = prompts[index // samples % len(prompts)]
        response = torch.randint(vocabulary, (length,), generator=generator).tolist()
        sequences.append([*prompt, *response])
        mask += [0] * len(prompt) + [1] * length
    batch = pack(sequences, [f"0/{index // samples}#{index % samples}" for index in range(len(lengths))])
    total, count = len(batch.tokens), len(batch)
    loss_mask = torch.tensor(mask, dtype=torch.uint8)
    logprobs = torch.where(loss_mask.bool(), -torch.rand(total, generator=generator) - 1.0, 0.0)
    batch.token_columns |= {
        "loss_mask": loss_mask,
        "behaviour_logprobs": logprobs,
        "engine_logprobs": logprobs.clone(),
        "weight_version": torch.zeros(total, dtype=torch.int32),
    }
    batch.sequence_columns |= {
        "group": torch.arange(count) // samples,
        "truncated": torch.zeros(count, dtype=torch.uint8),
        "rewards": torch.randn(count, generator=generator),
    }
    if algorithm.greedy_baseline or algorithm.reference_sample:
        last = torch.arange(count) % samples == samples - 1
        batch.sequence_columns[IS_BASELINE] = last.to(torch.uint8)
    distribution = algorithm.teacher_distribution
    if distribution is not None:
        candidates = min(distribution.candidates, vocabulary)
        batch.token_columns |= {
            "candidates": torch.arange(candidates).repeat(total, 1),
            "candidate_logprobs": torch.full((total, candidates), -math.log(2 * candidates)),
        }
        batch.scalars["candidates_temperature"] = distribution.temperature
    batch.scalars |= {
        "temperature": rollout.sampling.temperature or 1.0,
        "max_tokens": float(rollout.sampling.max_tokens),
        "version": 0.0,
    }
    return batch


def spread_groups(lengths: list[int], samples: int, groups: int) -> list[int]:
    """Return the lengths of a representative part of a step: groups at even distances."""
    total = len(lengths) // samples
    picked = [int((i + 0.5) * total / groups) for i in range(groups)]
    return [length for group in picked for length in lengths[group * samples : (group + 1) * samples]]
