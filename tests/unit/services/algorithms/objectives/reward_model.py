"""Reward model objectives: from pairs, and from ratings by one attribute or several."""

import math
from collections.abc import Callable

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.offline.reward_model import RewardModelAlgorithm
from kubealign_services.batch.packed import Batch
from support.batches import random_batch


def rows() -> Batch:
    return random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0, 0, 1, 1, 2, 2, 3, 3], seed=1)


def rated() -> Batch:
    batch = rows()
    batch.sequence_columns["ratings"] = torch.arange(len(batch)).double()[:, None]
    return batch


def partly_rated() -> Batch:
    """Return ratings of three attributes, with one unrated row and, in small splits, unrated microbatches."""
    batch = rows()
    ratings = torch.stack([torch.arange(8) % k for k in (3, 4, 5)], 1).double()
    ratings[0] = math.nan
    ratings[1:6, 2] = math.nan
    ratings[3, 0] = math.nan
    batch.sequence_columns["ratings"] = ratings
    return batch


def cases() -> dict[str, tuple[Objective, Callable[[], Batch]]]:
    preferences = spec.RewardModelSpec(
        language_model_coefficient=0.5, score_penalty=0.01, pooling=spec.ScorePooling.RESPONSE_SUM
    )
    ratings = spec.RewardModelSpec(
        objective=spec.RewardObjective(regression=spec.Regression()), score_penalty=0.1
    )
    summed = ratings.model_copy(
        update={"pooling": spec.ScorePooling.RESPONSE_SUM, "language_model_coefficient": 0.5}
    )
    names = ("good", "long", "kind")
    return {
        "preferences": (RewardModelAlgorithm(preferences).policy_objective(), rows),
        "ratings": (RewardModelAlgorithm(ratings).policy_objective(), rated),
        "attributes": (RewardModelAlgorithm(ratings).score_objective(names), partly_rated),
        "attributes-summed": (RewardModelAlgorithm(summed).score_objective(names), partly_rated),
    }
