"""Advantages of several rewards, each normalised by itself."""

import torch
from torch import Tensor

from kubealign.spec.algorithms import AdvantageNormalization
from kubealign_services.algorithms.advantages.normalization import normalize
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import TRANSFORMED, WEIGHT, applies_to


def normalize_then_sum(batch: Batch, spec: AdvantageNormalization) -> Tensor:
    """Compute advantages from each reward's own normalisation, float64 [S] (Liu et al. 2026, "GDPO: Group
    reward-Decoupled Normalization Policy Optimization", arXiv:2601.05242).

        Z_i = sum over rewards of weight * (r_i - center) / (scale + epsilon)
        A_i = (Z_i - mean Z) / (std Z + epsilon)        over the step

    A reward adds 0 to Z of the samples to which it does not apply, and its center and scale are those of the
    other samples. A sample to which no reward applies has advantage 0 and counts in no mean and no deviation.
    Both as in TRL's GRPOTrainer.

    Reads the sequence columns transformed.NAME, applies.NAME (see `reward_columns`) and group, and the
    scalars weight.NAME. Raises ValueError where the batch has no reward by source.
    """
    group = batch.sequence("group")
    names = [name[len(TRANSFORMED) :] for name in batch.sequence_columns if name.startswith(TRANSFORMED)]
    if not names:
        raise ValueError("rewardAggregation NormalizeThenSum finds no rewards by source in the batch")
    total = torch.zeros(len(batch), dtype=torch.float64)
    rewarded = torch.zeros(len(batch), dtype=torch.bool)
    for name in names:
        scored = applies_to(batch, name)
        rewarded |= scored
        if bool(scored.any()):
            rewards = batch.sequence(f"{TRANSFORMED}{name}")[scored].double()
            total[scored] += batch.scalars[f"{WEIGHT}{name}"] * normalize(rewards, group[scored], spec)
    known = total[rewarded]
    deviation = known.std() if len(known) > 1 else known.new_zeros(())
    advantages = torch.zeros_like(total)
    advantages[rewarded] = (known - known.mean()) / (deviation + spec.epsilon)
    return advantages
