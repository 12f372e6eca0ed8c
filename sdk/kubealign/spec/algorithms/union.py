"""Union of all algorithm specs, of which a job sets one."""

from pydantic import Field

from kubealign.spec.algorithms.critic import PPO
from kubealign.spec.algorithms.custom import Custom, CustomOffline
from kubealign.spec.algorithms.generation import Annotate, Generate
from kubealign.spec.algorithms.group import CISPO, DAPO, GRPO, GSPO, DrGRPO
from kubealign.spec.algorithms.preference import DPO, IPO, KTO, ORPO, RPO, SimPO
from kubealign.spec.algorithms.reinforce import RLOO, Reinforce, ReinforcePlusPlus, ReMax
from kubealign.spec.algorithms.reward_model import RewardModel
from kubealign.spec.algorithms.rounds import SPIN, RejectionSampling, SelfRewarding
from kubealign.spec.algorithms.supervised import SFT, Distillation
from kubealign.spec.base import Union


class Algorithm(Union):
    """Alignment algorithm."""

    sft: SFT | None = Field(None, description="Supervised fine-tuning on demonstrations.")
    distillation: Distillation | None = Field(
        None, description="Token-level distillation of a teacher model."
    )
    reward_model: RewardModel | None = Field(None, description="Training of a reward model.")
    ppo: PPO | None = Field(None, description="PPO: policy gradient from rewards, with a critic.")
    reinforce: Reinforce | None = Field(
        None, description="REINFORCE: policy gradient from rewards, with the mean reward as baseline."
    )
    reinforce_plus_plus: ReinforcePlusPlus | None = Field(
        None, description="REINFORCE++: advantages normalised over the step, with a clipped ratio."
    )
    rloo: RLOO | None = Field(
        None, description="RLOO: leave-one-out baseline over the responses to the same prompt."
    )
    remax: ReMax | None = Field(
        None, description="ReMax: REINFORCE with the greedy response's reward as baseline."
    )
    grpo: GRPO | None = Field(None, description="GRPO: group-relative advantages.")
    dr_grpo: DrGRPO | None = Field(
        None, description="Dr. GRPO: GRPO without division by standard deviation and length."
    )
    dapo: DAPO | None = Field(
        None, description="DAPO: GRPO with token-level loss, asymmetric clipping and dynamic sampling."
    )
    gspo: GSPO | None = Field(None, description="GSPO: GRPO with one importance ratio per response.")
    cispo: CISPO | None = Field(
        None, description="CISPO: GRPO with a clipped importance weight instead of a clipped objective."
    )
    dpo: DPO | None = Field(None, description="DPO: preference optimisation with a reference policy.")
    ipo: IPO | None = Field(None, description="IPO: preference optimisation towards a fixed margin.")
    rpo: RPO | None = Field(None, description="RPO: preference optimisation that fits the rated reward gap.")
    orpo: ORPO | None = Field(
        None, description="ORPO: supervised and odds ratio loss on preferences, without a reference."
    )
    simpo: SimPO | None = Field(
        None, description="SimPO: preference optimisation by mean log-probability, without a reference."
    )
    kto: KTO | None = Field(None, description="KTO: learning from unpaired good and bad responses.")
    spin: SPIN | None = Field(None, description="SPIN: iterative self-play against the demonstrations.")
    rejection_sampling: RejectionSampling | None = Field(
        None, description="Rejection sampling: iterative fine-tuning on the best own responses."
    )
    self_rewarding: SelfRewarding | None = Field(
        None, description="Self-rewarding: iterative preference optimisation on self-judged responses."
    )
    generate: Generate | None = Field(None, description="Sample responses and write them as data.")
    annotate: Annotate | None = Field(None, description="Score given responses and write them as data.")
    custom: Custom | None = Field(None, description="Plugin algorithm that learns from its own samples.")
    custom_offline: CustomOffline | None = Field(
        None, description="Plugin algorithm that learns from given rows."
    )
