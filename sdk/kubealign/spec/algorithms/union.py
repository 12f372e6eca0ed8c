"""All algorithms, of which a job names one."""

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
    """How the policy is aligned."""

    sft: SFT | None = Field(None, description="Imitate demonstrations.")
    distillation: Distillation | None = Field(None, description="Imitate a teacher, token by token.")
    reward_model: RewardModel | None = Field(None, description="Learn to score responses.")
    ppo: PPO | None = Field(None, description="Learn from rewards, with a critic.")
    reinforce: Reinforce | None = Field(None, description="Learn from rewards, by their mean alone.")
    reinforce_plus_plus: ReinforcePlusPlus | None = Field(
        None, description="Learn from rewards, normalised over the step, with a clipped ratio."
    )
    rloo: RLOO | None = Field(
        None, description="Learn from rewards; a sample's baseline is its group's other samples."
    )
    remax: ReMax | None = Field(
        None, description="Learn from rewards; the baseline is the likeliest response's."
    )
    grpo: GRPO | None = Field(None, description="Learn from rewards relative to the group's.")
    dr_grpo: DrGRPO | None = Field(None, description="GRPO without its division by deviation and length.")
    dapo: DAPO | None = Field(
        None, description="GRPO by tokens, with room to rise and without groups that teach nothing."
    )
    gspo: GSPO | None = Field(None, description="GRPO with one ratio for the whole response.")
    cispo: CISPO | None = Field(None, description="GRPO with the ratio as a bounded weight.")
    dpo: DPO | None = Field(None, description="Learn from preferences, held to a reference.")
    ipo: IPO | None = Field(None, description="Learn from preferences, up to a margin.")
    rpo: RPO | None = Field(None, description="Learn from preferences by how much the better is better.")
    orpo: ORPO | None = Field(
        None, description="Imitate the chosen and shun the rejected, without a reference."
    )
    simpo: SimPO | None = Field(None, description="Learn from preferences by mean log-probability.")
    kto: KTO | None = Field(None, description="Learn from responses that are good or bad.")
    spin: SPIN | None = Field(None, description="Rounds: prefer the demonstrations to one's own responses.")
    rejection_sampling: RejectionSampling | None = Field(
        None, description="Rounds: imitate the best of one's own responses."
    )
    self_rewarding: SelfRewarding | None = Field(
        None, description="Rounds: prefer what one judges to be one's better responses."
    )
    generate: Generate | None = Field(None, description="Sample responses, and write them as data.")
    annotate: Annotate | None = Field(None, description="Score given responses, and write them as data.")
    custom: Custom | None = Field(None, description="Another package's algorithm, on its own samples.")
    custom_offline: CustomOffline | None = Field(None, description="Another package's algorithm, on rows.")
