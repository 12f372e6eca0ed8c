"""Specs of the algorithms, each with its own fields and defaults.

The maths is in `kubealign_services.algorithms`.
"""

from kubealign.spec.algorithms.critic import GAE, PPO
from kubealign.spec.algorithms.custom import Custom, CustomOffline, RowKind
from kubealign.spec.algorithms.generation import Annotate, Comparison, Generate, Keep, Revision
from kubealign.spec.algorithms.group import CISPO, DAPO, GRPO, GSPO, DrGRPO, Grouped
from kubealign.spec.algorithms.kl import KL, AdaptiveKL, FixedKL, KLEstimator, KLPlacement
from kubealign.spec.algorithms.method import Makes, Method, Offline, Rows, Use
from kubealign.spec.algorithms.on_policy import Clipped, OnPolicy
from kubealign.spec.algorithms.policy_loss import (
    Center,
    Clip,
    DynamicSampling,
    Importance,
    ImportanceLevel,
    LossAggregation,
    Normalization,
    OutOfBounds,
    OverlongPenalty,
    RatioLevel,
    Scale,
)
from kubealign.spec.algorithms.preference import (
    DPO,
    IPO,
    KTO,
    ORPO,
    RPO,
    Preference,
    RPODistance,
    SimPO,
    WithReference,
)
from kubealign.spec.algorithms.reinforce import RLOO, Reinforce, ReinforcePlusPlus, ReMax
from kubealign.spec.algorithms.reward_model import (
    BradleyTerry,
    Pooling,
    Regression,
    RewardModel,
    RewardObjective,
)
from kubealign.spec.algorithms.rounds import SPIN, Judge, RejectionSampling, Rounds, SelfRewarding
from kubealign.spec.algorithms.supervised import SFT, Distillation, Divergence
from kubealign.spec.algorithms.union import Algorithm

__all__ = [
    "CISPO",
    "DAPO",
    "DPO",
    "GAE",
    "GRPO",
    "GSPO",
    "IPO",
    "KL",
    "KTO",
    "ORPO",
    "PPO",
    "RLOO",
    "RPO",
    "SFT",
    "SPIN",
    "AdaptiveKL",
    "Algorithm",
    "Annotate",
    "BradleyTerry",
    "Center",
    "Clip",
    "Clipped",
    "Comparison",
    "Custom",
    "CustomOffline",
    "Distillation",
    "Divergence",
    "DrGRPO",
    "DynamicSampling",
    "FixedKL",
    "Generate",
    "Grouped",
    "Importance",
    "ImportanceLevel",
    "Judge",
    "KLEstimator",
    "KLPlacement",
    "Keep",
    "LossAggregation",
    "Makes",
    "Method",
    "Normalization",
    "Offline",
    "OnPolicy",
    "OutOfBounds",
    "OverlongPenalty",
    "Pooling",
    "Preference",
    "RPODistance",
    "RatioLevel",
    "ReMax",
    "Regression",
    "Reinforce",
    "ReinforcePlusPlus",
    "RejectionSampling",
    "Revision",
    "RewardModel",
    "RewardObjective",
    "Rounds",
    "RowKind",
    "Rows",
    "Scale",
    "SelfRewarding",
    "SimPO",
    "Use",
    "WithReference",
]
