"""Iterative algorithms: packed rows with the log-probabilities of the round's initial weights."""

from collections.abc import Callable

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.iterative.rejection_sampling import RejectionSamplingAlgorithm
from kubealign_services.algorithms.iterative.self_rewarding import SelfRewardingAlgorithm
from kubealign_services.algorithms.iterative.spin import SPINAlgorithm
from kubealign_services.batch.packed import Batch
from support.batches import random_batch


def rows() -> Batch:
    return random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0] * 8, seed=1)


def cases() -> dict[str, tuple[Objective, Callable[[], Batch]]]:
    judge = spec.Judge(prompt="How good is {response}?")
    return {
        "spin": (SPINAlgorithm(spec.SPINSpec(beta=0.3)).policy_objective(), rows),
        "rejection-sampling": (
            RejectionSamplingAlgorithm(spec.RejectionSamplingSpec()).policy_objective(),
            rows,
        ),
        "self-rewarding": (
            SelfRewardingAlgorithm(spec.SelfRewardingSpec(judge=judge)).policy_objective(),
            rows,
        ),
    }
