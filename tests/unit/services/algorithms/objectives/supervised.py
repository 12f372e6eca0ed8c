"""Supervised objectives."""

from collections.abc import Callable

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.offline.distillation import DistillationAlgorithm
from kubealign_services.algorithms.offline.sft import SFTAlgorithm
from kubealign_services.algorithms.online.on_policy_distillation import OnPolicyDistillationAlgorithm
from kubealign_services.batch.packed import Batch
from support.batches import random_batch


def rows() -> Batch:
    return random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0, 0, 1, 1, 2, 2, 3, 3], seed=1)


def taught() -> Batch:
    batch = rows()
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((len(batch.tokens), 4), generator=generator, dtype=torch.float64)
    batch.token_columns["candidates"] = torch.arange(3).expand(len(batch.tokens), 3).clone()
    batch.token_columns["candidate_logprobs"] = logits.log_softmax(-1)[:, :3]
    return batch


def taught_samples() -> Batch:
    batch = taught()
    batch.token_columns["advantages"] = batch.token("values").roll(3) - 0.2
    batch.sequence_columns["truncated"] = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0], dtype=torch.uint8)
    return batch


def cases() -> dict[str, tuple[Objective, Callable[[], Batch]]]:
    reverse = spec.DistillationSpec(
        divergence=spec.DistillationDivergence.REVERSE, temperature=2.0, cross_entropy_coefficient=0.3
    )
    on_policy = spec.OnPolicyDistillationSpec(
        distribution=spec.TeacherDistribution(divergence=spec.DistillationDivergence.JENSEN_SHANNON),
        mask_truncated=True,
    )
    return {
        "sft": (SFTAlgorithm(spec.SFTSpec()).policy_objective(), rows),
        "distillation": (DistillationAlgorithm(spec.DistillationSpec()).policy_objective(), taught),
        "distillation-reverse": (DistillationAlgorithm(reverse).policy_objective(), taught),
        "on-policy": (OnPolicyDistillationAlgorithm(on_policy).policy_objective(), taught_samples),
    }
