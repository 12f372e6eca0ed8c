"""Policy, value and pair objectives of online algorithms, with every value of each component."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.factory import load_algorithm
from kubealign_services.algorithms.losses.policy_objective import PolicyObjective
from kubealign_services.algorithms.losses.surrogate import BoundedWeight, ClippedRatio, LogLikelihood
from kubealign_services.algorithms.losses.trust_region import make_trust_region
from kubealign_services.algorithms.losses.value_objective import ValueObjective
from kubealign_services.algorithms.online.online_dpo import OnlineDPOAlgorithm
from kubealign_services.algorithms.online.xpo import XPOAlgorithm
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from support.batches import random_batch

LOSS_KL = spec.KL(
    placement=spec.KLPlacement.LOSS, estimator=spec.KLEstimator.K3, fixed=spec.FixedKL(coefficient=0.2)
)
WIDE = spec.ImportanceCorrection(low=0.98, high=1.02)

#: Fields other than the defaults, which select a token or two of a small batch.
TRUST_REGIONS = {"clip_cov": {"fraction": 0.1, "low": 0.01}, "kl_cov": {"fraction": 0.1}}


def batch() -> Batch:
    """Advantages that differ from token to token; two responses that did not end."""
    result = random_batch([3, 1, 4, 2, 2, 5, 1, 3], [0, 0, 0, 0, 1, 1, 1, 1], seed=1)
    values = result.token("values")
    result.token_columns["advantages"] = values.roll(3) - 0.2
    result.token_columns["old_values"] = values
    result.token_columns["returns"] = values.roll(1)
    result.token_columns["old_logprobs"] = result.token("behaviour_logprobs") + 0.03 * values
    result.sequence_columns["truncated"] = torch.tensor([0, 0, 1, 0, 0, 1, 0, 0], dtype=torch.uint8)
    return result


def without_old() -> Batch:
    result = batch()
    del result.token_columns["old_logprobs"]
    return result


def mixed_versions() -> Batch:
    """Half of the tokens are older than the current weights; the gap covers the others."""
    result = without_old()
    result.token_columns["weight_version"] = torch.arange(len(result.tokens)) % 2
    result.scalars["version"] = 1.0
    return result


def with_entropy() -> Batch:
    result = batch()
    result.token_columns["old_entropy"] = result.token("values").cos()
    return result


def pairs(algorithm: OnlineDPOAlgorithm) -> Batch:
    """The best and the worst of groups of three, one of which has equal rewards."""
    result = random_batch([3, 1, 4, 2, 2, 5, 1, 3, 2], [0, 0, 0, 1, 1, 1, 2, 2, 2], seed=1)
    del result.token_columns["old_logprobs"]
    result.sequence_columns["rewards"][3:6] = 0.5
    algorithm.advantages(result, {})
    return drop_auxiliary(result)


def pairs_with_reference(algorithm: XPOAlgorithm) -> Batch:
    """Pairs of a sample of the policy and one of the reference, one of which has equal rewards."""
    result = random_batch([3, 1, 4, 2, 2, 5], [0, 0, 1, 1, 2, 2], seed=1)
    del result.token_columns["old_logprobs"]
    result.sequence_columns["rewards"][2:4] = 0.5
    result.sequence_columns["companion"] = torch.tensor([0, 1] * 3, dtype=torch.uint8)
    algorithm.advantages(result, {})
    return drop_auxiliary(result)


def clipped(**fields: Any) -> Objective:
    entry = spec.PPOSpec(**({"kl": LOSS_KL, "entropy_coefficient": 0.1} | fields))
    return PolicyObjective(entry, ClippedRatio(entry.clip), entry.ratio)


ENTRIES: dict[str, spec.OnPolicySpec] = {
    "ppo": spec.PPOSpec(kl=LOSS_KL),
    "reinforce": spec.ReinforceSpec(),
    "reinforce_plus_plus": spec.ReinforcePlusPlusSpec(),
    "rloo": spec.RLOOSpec(overlong=spec.OverlongPenalty(buffer_tokens=2)),
    "remax": spec.ReMaxSpec(),
    "grpo": spec.GRPOSpec(kl=LOSS_KL),
}


def reported() -> Iterator[str]:
    """Return the metrics of advantages."""
    for name, entry in ENTRIES.items():
        result = batch()
        result.sequence_columns["companion"] = torch.tensor([1, 0, 0, 0, 1, 0, 0, 0], dtype=torch.uint8)
        yield from load_algorithm(name)(entry).advantages(result, {})
    yield from OnlineDPOAlgorithm(spec.OnlineDPOSpec()).advantages(batch(), {})


def cases() -> dict[str, tuple[Objective, Callable[[], Batch]]]:
    result: dict[str, tuple[Objective, Callable[[], Batch]]] = {
        "critic": (ValueObjective(0.2, 0.5, mask_truncated=False), batch),
        "critic-masked": (ValueObjective(None, 0.5, mask_truncated=True), batch),
        "likelihood": (PolicyObjective(spec.ReinforceSpec(), LogLikelihood()), batch),
        "bounded-weight": (PolicyObjective(spec.CISPOSpec(), BoundedWeight(0.9, 1.05)), batch),
        "weighed-likelihood": (PolicyObjective(spec.ReinforceSpec(importance=WIDE), LogLikelihood()), batch),
        "dual-clip": (clipped(clip=spec.Clip(low=0.05, high=0.1, dual=1.15)), batch),
        "ratio-one": (clipped(), without_old),
        "mixed-versions": (clipped(), mixed_versions),
        "masked": (clipped(mask_truncated=True), batch),
        "positive-nll": (clipped(positive_nll_coefficient=0.1), batch),
        "off-policy-mask": (clipped(off_policy_mask=spec.OffPolicyMask(threshold=0.01)), batch),
        "top-entropy": (clipped(top_entropy_fraction=0.3), with_entropy),
        "top-entropy-of-responses": (
            clipped(top_entropy_fraction=0.3, ratio=spec.RatioLevel.SEQUENCE_MEAN, mask_truncated=True),
            with_entropy,
        ),
        "sequence-mask": (
            clipped(
                importance=spec.ImportanceCorrection(sequence_mask=spec.WeightBounds(low=0.99, high=1.01))
            ),
            batch,
        ),
    }
    for loss_type in spec.PreferenceLoss:
        algorithm = OnlineDPOAlgorithm(spec.OnlineDPOSpec(samples_per_prompt=3, loss_type=loss_type))
        result[f"online-dpo-{loss_type}"] = algorithm.policy_objective(), partial(pairs, algorithm)
        exploring = XPOAlgorithm(spec.XPOSpec(loss_type=loss_type, alpha=0.1))
        result[f"xpo-{loss_type}"] = exploring.policy_objective(), partial(pairs_with_reference, exploring)
    for member in spec.TrustRegion.model_fields:
        region = spec.TrustRegion.model_validate({member: TRUST_REGIONS.get(member, {})})
        surrogate = make_trust_region(region, spec.Clip())
        result[f"trust-region-{member}"] = (
            PolicyObjective(spec.PPOSpec(trust_region=region), surrogate),
            batch,
        )
    for aggregation in spec.LossAggregation:
        for ratio in spec.RatioLevel:
            result[f"{aggregation}-of-{ratio}-ratios"] = clipped(aggregation=aggregation, ratio=ratio), batch
    for level in spec.ImportanceLevel:
        for outside in spec.OutOfBoundsWeights:
            weights = WIDE.model_copy(update={"level": level, "outside": outside})
            result[f"importance-{level}-{outside}"] = clipped(importance=weights), batch
    return result
