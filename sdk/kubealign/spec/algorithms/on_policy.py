"""Base specs of on-policy algorithms, which learn from their own samples."""

from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.algorithms.kl import KL, FixedKL, KLPlacement
from kubealign.spec.algorithms.online import OnlineSpec, require_whole_minibatches
from kubealign.spec.algorithms.policy_loss import (
    AdvantageCenter,
    AdvantageNormalization,
    AdvantageScale,
    Clip,
    CreditAssignment,
    ImportanceCorrection,
    LossAggregation,
    OffPolicyMask,
    OverlongPenalty,
    RatioLevel,
)
from kubealign.spec.algorithms.trust_region import TrustRegion
from kubealign.spec.base import field_errors

#: Dual clip where samples may be stale and the spec names none: verl's clip_ratio_c.
STALE_DUAL_CLIP = 3.0


class OnPolicySpec(OnlineSpec):
    """Fields of all algorithms with sampling, rewards, advantages and a policy loss."""

    accepts_branches: ClassVar[bool] = True
    #: Normalises the advantages of tokens, not those of whole responses.
    token_advantages: ClassVar[bool] = False
    #: Allows a baseline for each token as the center of the advantages.
    token_baseline: ClassVar[bool] = False

    advantage: AdvantageNormalization = Field(
        AdvantageNormalization(center=AdvantageCenter.NONE),
        description="Normalisation of returns to advantages.",
    )
    aggregation: LossAggregation = Field(
        LossAggregation.TOKEN_MEAN, description="Aggregation of the per-token losses into one loss."
    )
    kl: KL = Field(KL(fixed=FixedKL()), description="KL penalty towards the reference policy.")
    entropy_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the entropy bonus: mean entropy of the policy over the response tokens.",
    )
    positive_nll_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the negative log-likelihood of responses with a reward above 0, mean over "
        "their tokens (Yue et al. 2025, VAPO: 0.1).",
    )
    importance: ImportanceCorrection | None = Field(
        None,
        description="Importance weighting that corrects differences between the rollout engine's and the "
        "trainer's log-probabilities. null: no weighting, or with maxStaleness above 0 that of the "
        "decoupled loss: per token, truncated at 5.",
    )
    off_policy_mask: OffPolicyMask | None = Field(
        None,
        description="Mask of negative responses that the policy has moved away from; null: no mask.",
    )
    top_entropy_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the minibatch's response tokens with a policy gradient: those with the highest "
        "entropy before the step (Wang et al. 2025: 0.2); null: all tokens.",
    )
    overlong: OverlongPenalty | None = Field(
        None, description="Penalty on responses near the length limit; null: no penalty."
    )
    mask_truncated: bool = Field(
        False, description="Exclude responses that did not end within maxTokens from the loss."
    )

    @property
    def uses_reference(self) -> bool:
        """True if the KL penalty is active."""
        return self.kl.active

    @property
    def corrects_kl(self) -> bool:
        """True if the KL estimate in the loss is weighted by the ratio to the policy that sampled."""
        if self.kl.placement is not KLPlacement.LOSS:
            return False
        off_policy = self.updates_per_step > 1 or self.max_staleness > 0
        return off_policy if self.kl.corrected is None else self.kl.corrected

    @property
    def effective_importance(self) -> ImportanceCorrection | None:
        """Importance weighting that is applied; None: no weighting."""
        return self.importance or (ImportanceCorrection() if self.max_staleness > 0 else None)

    @model_validator(mode="after")
    def _minibatches(self) -> "OnPolicySpec":
        factors = f"{self.prompts_per_step} x {self.samples_per_prompt} = {self.sequences_per_step}"
        require_whole_minibatches(self, f"must divide promptsPerStep x samplesPerPrompt ({factors})")
        return self

    @model_validator(mode="after")
    def _samples_to_compare(self) -> "OnPolicySpec":
        if (
            self.advantage.center
            in (AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT, AdvantageCenter.OPTIMAL_TOKEN)
            and self.samples_per_prompt < 2
        ):
            raise field_errors(
                type(self).__name__,
                (
                    ("advantage", "center"),
                    self.advantage.center,
                    "compares a prompt's samples: set samplesPerPrompt to at least 2, or center to Batch",
                ),
            )
        if self.advantage.pass_at_k is not None and self.advantage.pass_at_k > self.samples_per_prompt:
            raise field_errors(
                type(self).__name__,
                (
                    ("advantage", "passAtK"),
                    self.advantage.pass_at_k,
                    f"must be at most samplesPerPrompt ({self.samples_per_prompt})",
                ),
            )
        return self

    @model_validator(mode="after")
    def _responses_to_compare(self) -> "OnPolicySpec":
        """Refuse comparisons of whole responses where advantages are those of tokens."""
        name = type(self).__name__
        if self.token_advantages and self.advantage.pass_at_k is not None:
            text = "compares whole responses, but these advantages are those of tokens: remove it"
            raise field_errors(name, (("advantage", "passAtK"), self.advantage.pass_at_k, text))
        if self.token_advantages and self.advantage.scale is AdvantageScale.GROUP_MEAN:
            text = "compares whole responses, but these advantages are those of tokens: set Batch or Group"
            raise field_errors(name, (("advantage", "scale"), self.advantage.scale, text))
        return self

    @model_validator(mode="after")
    def _token_baseline(self) -> "OnPolicySpec":
        if self.advantage.center is AdvantageCenter.OPTIMAL_TOKEN and not self.token_baseline:
            text = "OptimalToken is for grpo, deepseekMath, drGrpo, dapo, gspo and cispo: set another center"
            raise field_errors(type(self).__name__, (("advantage", "center"), self.advantage.center, text))
        return self

    @model_validator(mode="after")
    def _adaptive_in_reward(self) -> "OnPolicySpec":
        if self.kl.adaptive is not None and self.kl.placement is KLPlacement.LOSS:
            raise field_errors(
                type(self).__name__,
                (
                    ("kl", "adaptive"),
                    self.kl.adaptive,
                    "an adaptive coefficient needs the KL penalty in the reward: set placement to Reward, "
                    "or use fixed",
                ),
            )
        return self


class StepCreditSpec(OnPolicySpec):
    """Field of algorithms that credit responses, or their steps."""

    credit: CreditAssignment = Field(
        CreditAssignment.RESPONSE,
        description="Tokens that a reward credits; Steps needs rewards of steps or turns.",
    )

    @property
    def credits_steps(self) -> bool:
        """True where the steps that end at a token or later are credited to it."""
        return self.credit is CreditAssignment.STEPS


class ClippedRatioSpec(OnPolicySpec):
    """Fields of algorithms with a clipped importance ratio."""

    bounds_ratio: ClassVar[bool] = True

    clip: Clip = Field(Clip(), description="Clip range of the importance ratio.")
    ratio: RatioLevel = Field(RatioLevel.TOKEN, description="Level of the importance ratio.")
    trust_region: TrustRegion | None = Field(
        None,
        description="Trust region in place of the clip range (clipCov: in addition to it); null: the clip "
        "range.",
    )

    @property
    def effective_clip(self) -> Clip:
        """Clip range that is applied: with a dual clip where samples may be stale."""
        if self.clip.dual is not None or self.max_staleness == 0:
            return self.clip
        return self.clip.model_copy(update={"dual": STALE_DUAL_CLIP})

    @model_validator(mode="after")
    def _tokens_of_high_entropy(self) -> "ClippedRatioSpec":
        region = self.trust_region
        if self.top_entropy_fraction is not None and region is not None and region.gmpo is not None:
            text = "GMPO's ratio is that of the whole response: remove it, or choose another trustRegion"
            raise field_errors(
                type(self).__name__, (("topEntropyFraction",), self.top_entropy_fraction, text)
            )
        return self

    @model_validator(mode="after")
    def _trust_region_of_tokens(self) -> "ClippedRatioSpec":
        if self.trust_region is not None and self.ratio is not RatioLevel.TOKEN:
            raise field_errors(
                type(self).__name__,
                (
                    ("ratio",),
                    self.ratio,
                    "trustRegion needs the ratio of each token: set Token, or remove it",
                ),
            )
        return self


def require_token_ratio(entry: ClippedRatioSpec) -> None:
    """Raise ValidationError for a ratio of whole responses where steps have advantages of their own."""
    name = type(entry).__name__
    if entry.ratio is not RatioLevel.TOKEN:
        text = "a ratio of the whole response has one advantage, not those of steps: set Token"
        raise field_errors(name, (("ratio",), entry.ratio, text))
    if entry.trust_region is not None and entry.trust_region.gmpo is not None:
        text = "GMPO's ratio is that of the whole response, not of steps: choose another one"
        raise field_errors(name, (("trustRegion", "gmpo"), entry.trust_region.gmpo, text))
