"""Specs of the algorithms, each with its own fields and defaults.

`union` registers them. The maths is in `kubealign_services.algorithms`. A spec class can be imported from
its module without being re-exported here.
"""

from kubealign.spec.algorithms.base import (
    AlgorithmSpec,
    OfflineSpec,
    Requirement,
    ResultKind,
    RowAlgorithmSpec,
)
from kubealign.spec.algorithms.custom import CustomOfflineSpec, CustomSpec, RowKind
from kubealign.spec.algorithms.data_generation import (
    AnnotateSpec,
    CritiqueRevision,
    GenerateSpec,
    PairwiseComparison,
    SampleSelection,
)
from kubealign.spec.algorithms.evaluation import EvaluateSpec
from kubealign.spec.algorithms.group_relative import (
    CISPOSpec,
    DAPOSpec,
    DeepSeekMathSpec,
    DrGRPOSpec,
    GroupRelativeSpec,
    GRPOSpec,
    GSPOSpec,
)
from kubealign.spec.algorithms.iterative import (
    IterativeSpec,
    Judge,
    RejectionSamplingSpec,
    SelfRewardingSpec,
    SPINSpec,
)
from kubealign.spec.algorithms.kl import KL, AdaptiveKL, FixedKL, KLEstimator, KLPlacement
from kubealign.spec.algorithms.on_policy import ClippedRatioSpec, OnPolicySpec
from kubealign.spec.algorithms.on_policy_distillation import Hint, HintMessage, OnPolicyDistillationSpec
from kubealign.spec.algorithms.online import OnlineSpec
from kubealign.spec.algorithms.online_dpo import OnlineDPOSpec, PreferenceLoss, SampledPairsSpec, XPOSpec
from kubealign.spec.algorithms.policy_loss import (
    AdvantageCenter,
    AdvantageNormalization,
    AdvantageScale,
    Clip,
    CreditAssignment,
    DynamicSamplingSpec,
    ImportanceCorrection,
    ImportanceLevel,
    LossAggregation,
    OffPolicyMask,
    OutOfBoundsWeights,
    OverlongPenalty,
    RatioLevel,
    RewardAggregation,
    WeightBounds,
)
from kubealign.spec.algorithms.ppo import GAE, LengthAdaptiveLambda, PPOSpec
from kubealign.spec.algorithms.preference import (
    ChosenLikelihoodSpec,
    DPOSpec,
    IPOSpec,
    KTOSpec,
    LikelihoodReduction,
    ORPOSpec,
    PreferenceSpec,
    ReferencePreferenceSpec,
    RPODistance,
    RPOSpec,
    SimPOSpec,
)
from kubealign.spec.algorithms.reinforce import ReinforcePlusPlusSpec, ReinforceSpec, ReMaxSpec, RLOOSpec
from kubealign.spec.algorithms.reward_model import (
    STEPS_POOLING,
    BradleyTerry,
    Regression,
    RewardModelSpec,
    RewardObjective,
    ScorePooling,
    StepClassification,
)
from kubealign.spec.algorithms.supervised import DistillationSpec, SFTSpec
from kubealign.spec.algorithms.teacher_distribution import DistillationDivergence, TeacherDistribution
from kubealign.spec.algorithms.trust_region import DPPO, GMPO, SAPO, ClipCov, KLCov, TrustRegion
from kubealign.spec.algorithms.union import Algorithm, algorithm_specs

__all__ = [
    "DPPO",
    "GAE",
    "GMPO",
    "KL",
    "SAPO",
    "STEPS_POOLING",
    "AdaptiveKL",
    "AdvantageCenter",
    "AdvantageNormalization",
    "AdvantageScale",
    "Algorithm",
    "AlgorithmSpec",
    "AnnotateSpec",
    "BradleyTerry",
    "CISPOSpec",
    "ChosenLikelihoodSpec",
    "Clip",
    "ClipCov",
    "ClippedRatioSpec",
    "CreditAssignment",
    "CritiqueRevision",
    "CustomOfflineSpec",
    "CustomSpec",
    "DAPOSpec",
    "DPOSpec",
    "DeepSeekMathSpec",
    "DistillationDivergence",
    "DistillationSpec",
    "DrGRPOSpec",
    "DynamicSamplingSpec",
    "EvaluateSpec",
    "FixedKL",
    "GRPOSpec",
    "GSPOSpec",
    "GenerateSpec",
    "GroupRelativeSpec",
    "Hint",
    "HintMessage",
    "IPOSpec",
    "ImportanceCorrection",
    "ImportanceLevel",
    "IterativeSpec",
    "Judge",
    "KLCov",
    "KLEstimator",
    "KLPlacement",
    "KTOSpec",
    "LengthAdaptiveLambda",
    "LikelihoodReduction",
    "LossAggregation",
    "ORPOSpec",
    "OffPolicyMask",
    "OfflineSpec",
    "OnPolicyDistillationSpec",
    "OnPolicySpec",
    "OnlineDPOSpec",
    "OnlineSpec",
    "OutOfBoundsWeights",
    "OverlongPenalty",
    "PPOSpec",
    "PairwiseComparison",
    "PreferenceLoss",
    "PreferenceSpec",
    "RLOOSpec",
    "RPODistance",
    "RPOSpec",
    "RatioLevel",
    "ReMaxSpec",
    "ReferencePreferenceSpec",
    "Regression",
    "ReinforcePlusPlusSpec",
    "ReinforceSpec",
    "RejectionSamplingSpec",
    "Requirement",
    "ResultKind",
    "RewardAggregation",
    "RewardModelSpec",
    "RewardObjective",
    "RowAlgorithmSpec",
    "RowKind",
    "SFTSpec",
    "SPINSpec",
    "SampleSelection",
    "SampledPairsSpec",
    "ScorePooling",
    "SelfRewardingSpec",
    "SimPOSpec",
    "StepClassification",
    "TeacherDistribution",
    "TrustRegion",
    "WeightBounds",
    "XPOSpec",
    "algorithm_specs",
]
