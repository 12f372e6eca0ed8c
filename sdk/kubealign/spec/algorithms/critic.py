"""Learning from rewards with a critic."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.on_policy import Clipped
from kubealign.spec.algorithms.policy_loss import Center, Normalization, Scale
from kubealign.spec.base import MOST, Spec, incoherent
from kubealign.spec.training import Fraction


class GAE(Spec):
    """Generalised advantage estimation (Schulman et al. 2016)."""

    gamma: Fraction = Field(1.0, description="Discount of a token's reward by the tokens before it.")
    lambda_: Fraction = Field(
        0.95, alias="lambda", description="1: returns as sampled; 0: one step, then the critic."
    )


class PPO(Clipped):
    """Proximal policy optimisation with a learned critic (Schulman et al. 2017; Ouyang et al. 2022)."""

    critic: ClassVar[bool] = True

    advantage: Normalization = Field(
        Normalization(center=Center.BATCH, scale=Scale.BATCH),
        description="What becomes of the estimated advantages, over the step's response tokens.",
    )
    gae: GAE = Field(GAE(), description="How advantages are made from rewards and values.")
    value_clip: float = Field(
        0.2, ge=0, description="Bound on a value's move from its old one in the loss; 0: none."
    )
    value_coefficient: float = Field(0.5, gt=0, description="Scale of the critic's loss.")
    critic_warmup_steps: int = Field(
        0, ge=0, le=MOST, description="First steps in which only the critic learns."
    )

    @model_validator(mode="after")
    def _advantages_of_tokens(self) -> "PPO":
        if self.advantage.center is Center.LEAVE_ONE_OUT:
            raise incoherent(
                "PPO",
                (
                    ("advantage", "center"),
                    self.advantage.center,
                    "PPO's advantages are of tokens, none of which stands for a sample: set Batch, Group or "
                    "None",
                ),
            )
        return self
