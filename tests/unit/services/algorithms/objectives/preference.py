"""Preference methods: from pairs, and from single responses that are good or bad."""

from collections.abc import Callable

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.offline.dpo import DPOAlgorithm
from kubealign_services.algorithms.offline.ipo import IPOAlgorithm
from kubealign_services.algorithms.offline.kto import KTOAlgorithm
from kubealign_services.algorithms.offline.orpo import ORPOAlgorithm
from kubealign_services.algorithms.offline.rpo import RPOAlgorithm
from kubealign_services.algorithms.offline.simpo import SimPOAlgorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from support.batches import random_batch


def pairs() -> Batch:
    batch = random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0] * 8, seed=1)
    batch.sequence_columns["rating"] = torch.tensor([3.0, 1, 2, 2, 4, 0, 1, 2], dtype=torch.float64)
    return batch


def singles() -> Batch:
    batch = random_batch([3, 1, 4, 2, 2, 5, 1, 3, 2, 2], [0] * 10, seed=1)
    batch.sequence_columns["label"] = torch.tensor([1, 0, 0, 1, 1, 1, 0, 1, 0, 0], dtype=torch.uint8)
    batch.sequence_columns["companion"] = torch.tensor([0] * 8 + [1, 1], dtype=torch.uint8)
    batch.token_columns["old_logprobs"] = batch.token("reference_logprobs") + 0.05
    KTOAlgorithm(spec.KTOSpec()).advantages(batch, {})
    return drop_auxiliary(batch)


def cases() -> dict[str, tuple[Objective, Callable[[], Batch]]]:
    rpo = {
        distance: RPOAlgorithm(spec.RPOSpec(distance=distance, reward_scale=0.5))
        for distance in spec.RPODistance
    }
    kto = KTOAlgorithm(spec.KTOSpec(desirable_weight=1.3, undesirable_weight=0.7))
    return {
        "dpo": (DPOAlgorithm(spec.DPOSpec()).policy_objective(), pairs),
        "dpo-conservative": (
            DPOAlgorithm(spec.DPOSpec(label_smoothing=0.1, nll_coefficient=0.3)).policy_objective(),
            pairs,
        ),
        "ipo": (IPOAlgorithm(spec.IPOSpec()).policy_objective(), pairs),
        "orpo": (ORPOAlgorithm(spec.ORPOSpec()).policy_objective(), pairs),
        "simpo": (SimPOAlgorithm(spec.SimPOSpec()).policy_objective(), pairs),
        **{f"rpo-{distance}": (result.policy_objective(), pairs) for distance, result in rpo.items()},
        "kto": (kto.policy_objective(), singles),
    }


def reported() -> set[str]:
    """Return the metrics of the step besides the objectives' own."""
    return {"preference/kl_baseline"}
