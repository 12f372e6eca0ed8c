"""Specs of the algorithms, each with its own fields and defaults.

The maths is in `kubealign_services.algorithms`.
"""

from kubealign.spec.algorithms.ppo import GAE, PPOSpec
from kubealign.spec.algorithms.custom import CustomSpec, CustomOfflineSpec, RowKind
from kubealign.spec.algorithms.data_generation import AnnotateSpec, PairwiseComparison, GenerateSpec, SampleSelection, CritiqueRevision
from kubealign.spec.algorithms.group_relative import CISPOSpec, DAPOSpec, GRPOSpec, GSPOSpec, DrGRPOSpec, GroupRelativeSpec
from kubealign.spec.algorithms.kl import KL, AdaptiveKL, FixedKL, KLEstimator, KLPlacement
from kubealign.spec.algorithms.base import ResultKind, AlgorithmSpec, OfflineSpec, RowAlgorithmSpec, Requirement
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec, OnPolicySpec
from kubealign.spec.algorithms.policy_loss import (
    AdvantageCenter,
    Clip,
    DynamicSamplingSpec,
    ImportanceCorrection,
    ImportanceLevel,
    LossAggregation,
    AdvantageNormalization,
    OutOfBoundsWeights,
    OverlongPenalty,
    RatioLevel,
    AdvantageScale,
)
from kubealign.spec.algorithms.preference import (
    DPOSpec,
    IPOSpec,
    KTOSpec,
    ORPOSpec,
    RPOSpec,
    PreferenceSpec,
    RPODistance,
    SimPOSpec,
    ReferencePreferenceSpec,
)
from kubealign.spec.algorithms.reinforce import RLOOSpec, ReinforceSpec, ReinforcePlusPlusSpec, ReMaxSpec
from kubealign.spec.algorithms.reward_model import (
    BradleyTerry,
    ScorePooling,
    Regression,
    RewardModelSpec,
    RewardObjective,
)
from kubealign.spec.algorithms.iterative import SPINSpec, Judge, RejectionSamplingSpec, IterativeSpec, SelfRewardingSpec
from kubealign.spec.algorithms.supervised import SFTSpec, DistillationSpec, DistillationDivergence
from kubealign.spec.algorithms.union import Algorithm

__all__ = [
    "CISPOSpec",
    "DAPOSpec",
    "DPOSpec",
    "GAE",
    "GRPOSpec",
    "GSPOSpec",
    "IPOSpec",
    "KL",
    "KTOSpec",
    "ORPOSpec",
    "PPOSpec",
    "RLOOSpec",
    "RPOSpec",
    "SFTSpec",
    "SPINSpec",
    "AdaptiveKL",
    "Algorithm",
    "AnnotateSpec",
    "BradleyTerry",
    "AdvantageCenter",
    "Clip",
    "ClippedRatioSpec",
    "PairwiseComparison",
    "CustomSpec",
    "CustomOfflineSpec",
    "DistillationSpec",
    "DistillationDivergence",
    "DrGRPOSpec",
    "DynamicSamplingSpec",
    "FixedKL",
    "GenerateSpec",
    "GroupRelativeSpec",
    "ImportanceCorrection",
    "ImportanceLevel",
    "Judge",
    "KLEstimator",
    "KLPlacement",
    "SampleSelection",
    "LossAggregation",
    "ResultKind",
    "AlgorithmSpec",
    "AdvantageNormalization",
    "OfflineSpec",
    "OnPolicySpec",
    "OutOfBoundsWeights",
    "OverlongPenalty",
    "ScorePooling",
    "PreferenceSpec",
    "RPODistance",
    "RatioLevel",
    "ReMaxSpec",
    "Regression",
    "ReinforceSpec",
    "ReinforcePlusPlusSpec",
    "RejectionSamplingSpec",
    "CritiqueRevision",
    "RewardModelSpec",
    "RewardObjective",
    "IterativeSpec",
    "RowKind",
    "RowAlgorithmSpec",
    "AdvantageScale",
    "SelfRewardingSpec",
    "SimPOSpec",
    "Requirement",
    "ReferencePreferenceSpec",
]
