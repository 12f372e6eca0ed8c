"""Spec of PPO, the algorithm with a learned critic."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.on_policy import ClippedRatioSpec
from kubealign.spec.algorithms.policy_loss import AdvantageCenter, AdvantageNormalization, AdvantageScale
from kubealign.spec.base import MAX_INT32, SpecModel, field_errors
from kubealign.spec.sections.training import Fraction


class LengthAdaptiveLambda(SpecModel):
    """Lambda by the length of the response (Yue et al. 2025, VAPO): 1 - 1 / (alpha x response tokens).

    The reward at the end then reaches a fixed share of a long response's tokens.
    """

    alpha: float = Field(0.05, gt=0, description="Inverse of the share of the response that is reached.")


class GAE(SpecModel):
    """Generalised advantage estimation (Schulman et al. 2016)."""

    gamma: Fraction = Field(1.0, description="Discount factor per token.")
    lambda_: Fraction = Field(
        1.0,
        alias="lambda",
        description="Bias-variance trade-off. 1: Monte Carlo returns, for a reward at the end of the "
        "response, as in verl and OpenRLHF; 0.95, as in TRL: less variance, but an early token gets "
        "0.95^n of a reward n tokens later; 0: one-step temporal difference.",
    )
    length_adaptive: LengthAdaptiveLambda | None = Field(
        None, description="Lambda of the policy's advantages by the length of each response; null: lambda."
    )
    critic_lambda: Fraction | None = Field(
        None,
        description="Lambda of the critic's returns, such as 1 for targets without bias (Yuan et al. 2025, "
        "VC-PPO); null: lambda.",
    )


class PPOSpec(ClippedRatioSpec):
    """Proximal policy optimisation with a learned critic (Schulman et al. 2017; Ouyang et al. 2022)."""

    implementation: ClassVar[str | None] = "kubealign_services.algorithms.online.ppo:PPOAlgorithm"
    critic: ClassVar[bool] = True
    token_advantages: ClassVar[bool] = True

    advantage: AdvantageNormalization = Field(
        AdvantageNormalization(center=AdvantageCenter.BATCH, scale=AdvantageScale.BATCH),
        description="Normalisation of the estimated advantages over the step's response tokens.",
    )
    gae: GAE = Field(GAE(), description="Advantage estimation from rewards and values.")
    value_clip: float = Field(
        0.2,
        ge=0,
        description="Clip range of the value loss: largest change of a value from its old estimate; 0: no "
        "clipping.",
    )
    value_coefficient: float = Field(0.5, gt=0, description="Weight of the value loss.")
    critic_warmup_steps: int = Field(
        0, ge=0, le=MAX_INT32, description="First steps in which only the critic is trained."
    )

    @property
    def credits_steps(self) -> bool:
        return True

    @model_validator(mode="after")
    def _advantages_of_tokens(self) -> "PPOSpec":
        if self.advantage.center is AdvantageCenter.LEAVE_ONE_OUT:
            raise field_errors(
                "PPO",
                (
                    ("advantage", "center"),
                    self.advantage.center,
                    "PPO's advantages are per token, so no sample can be left out: set Batch, Group or None",
                ),
            )
        return self
