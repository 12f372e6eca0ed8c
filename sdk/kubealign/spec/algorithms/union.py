"""Union of all algorithm specs, of which a job sets one: the registry of the algorithms.

A field of `Algorithm` registers an algorithm. The CustomResourceDefinition, the documentation, the choices
of `kubealign init` and, by `AlgorithmSpec.implementation`, the services derive from the fields.
"""

from functools import cache

from pydantic import Field

from kubealign.spec.algorithms.base import AlgorithmSpec
from kubealign.spec.algorithms.custom import CustomOfflineSpec, CustomSpec
from kubealign.spec.algorithms.data_generation import AnnotateSpec, GenerateSpec
from kubealign.spec.algorithms.evaluation import EvaluateSpec
from kubealign.spec.algorithms.group_relative import (
    CISPOSpec,
    DAPOSpec,
    DeepSeekMathSpec,
    DrGRPOSpec,
    GRPOSpec,
    GSPOSpec,
)
from kubealign.spec.algorithms.iterative import RejectionSamplingSpec, SelfRewardingSpec, SPINSpec
from kubealign.spec.algorithms.on_policy_distillation import OnPolicyDistillationSpec
from kubealign.spec.algorithms.online_dpo import OnlineDPOSpec, XPOSpec
from kubealign.spec.algorithms.ppo import PPOSpec
from kubealign.spec.algorithms.preference import DPOSpec, IPOSpec, KTOSpec, ORPOSpec, RPOSpec, SimPOSpec
from kubealign.spec.algorithms.reinforce import ReinforcePlusPlusSpec, ReinforceSpec, ReMaxSpec, RLOOSpec
from kubealign.spec.algorithms.reward_model import RewardModelSpec
from kubealign.spec.algorithms.supervised import DistillationSpec, SFTSpec
from kubealign.spec.base import SpecUnion
from kubealign.spec.field_lookup import nested_model


class Algorithm(SpecUnion):
    """Alignment algorithm."""

    sft: SFTSpec | None = Field(None, description="Supervised fine-tuning on demonstrations.")
    distillation: DistillationSpec | None = Field(
        None, description="Token-level distillation of a teacher model."
    )
    reward_model: RewardModelSpec | None = Field(None, description="Training of a reward model.")
    ppo: PPOSpec | None = Field(None, description="PPO: policy gradient from rewards, with a critic.")
    reinforce: ReinforceSpec | None = Field(
        None, description="REINFORCE: policy gradient from rewards, with the mean reward as baseline."
    )
    reinforce_plus_plus: ReinforcePlusPlusSpec | None = Field(
        None, description="REINFORCE++: advantages normalised over the step, with a clipped ratio."
    )
    rloo: RLOOSpec | None = Field(
        None, description="RLOO: leave-one-out baseline over the responses to the same prompt."
    )
    remax: ReMaxSpec | None = Field(
        None, description="ReMax: REINFORCE with the greedy response's reward as baseline."
    )
    grpo: GRPOSpec | None = Field(None, description="GRPO: group-relative advantages.")
    deepseek_math: DeepSeekMathSpec | None = Field(
        None, description="GRPO with the settings of the DeepSeekMath paper: a KL penalty and 64 samples."
    )
    dr_grpo: DrGRPOSpec | None = Field(
        None, description="Dr. GRPO: GRPO without division by standard deviation and length."
    )
    dapo: DAPOSpec | None = Field(
        None, description="DAPO: GRPO with token-level loss, asymmetric clipping and dynamic sampling."
    )
    gspo: GSPOSpec | None = Field(None, description="GSPO: GRPO with one importance ratio per response.")
    cispo: CISPOSpec | None = Field(
        None, description="CISPO: GRPO with a clipped importance weight instead of a clipped objective."
    )
    on_policy_distillation: OnPolicyDistillationSpec | None = Field(
        None, description="On-policy distillation: a teacher judges each token of the policy's responses."
    )
    online_dpo: OnlineDPOSpec | None = Field(
        None, description="Online DPO: preference optimisation on the best and worst of sampled responses."
    )
    xpo: XPOSpec | None = Field(
        None, description="XPO: online DPO against responses of the reference, with an exploration bonus."
    )
    dpo: DPOSpec | None = Field(None, description="DPO: preference optimisation with a reference policy.")
    ipo: IPOSpec | None = Field(None, description="IPO: preference optimisation towards a fixed margin.")
    rpo: RPOSpec | None = Field(
        None, description="RPO: preference optimisation that fits the rated reward gap."
    )
    orpo: ORPOSpec | None = Field(
        None, description="ORPO: supervised and odds ratio loss on preferences, without a reference."
    )
    simpo: SimPOSpec | None = Field(
        None, description="SimPO: preference optimisation by mean log-probability, without a reference."
    )
    kto: KTOSpec | None = Field(None, description="KTO: learning from unpaired good and bad responses.")
    spin: SPINSpec | None = Field(None, description="SPIN: iterative self-play against the demonstrations.")
    rejection_sampling: RejectionSamplingSpec | None = Field(
        None, description="Rejection sampling: iterative fine-tuning on the best own responses."
    )
    self_rewarding: SelfRewardingSpec | None = Field(
        None, description="Self-rewarding: iterative preference optimisation on self-judged responses."
    )
    generate: GenerateSpec | None = Field(None, description="Sample responses and write them as data.")
    annotate: AnnotateSpec | None = Field(None, description="Score given responses and write them as data.")
    evaluate: EvaluateSpec | None = Field(None, description="Measure the validation, without training.")
    custom: CustomSpec | None = Field(None, description="Plugin algorithm that learns from its own samples.")
    custom_offline: CustomOfflineSpec | None = Field(
        None, description="Plugin algorithm that learns from given rows."
    )


@cache
def algorithm_specs() -> dict[str, type[AlgorithmSpec]]:
    """Return the spec class of each algorithm by its name in Python, in the order of the union."""
    specs: dict[str, type[AlgorithmSpec]] = {}
    for name, field in Algorithm.model_fields.items():
        model = nested_model(field.annotation)
        assert model is not None and issubclass(model, AlgorithmSpec), name
        specs[name] = model
    return specs
