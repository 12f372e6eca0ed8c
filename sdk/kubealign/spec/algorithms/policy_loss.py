"""Components of the policy losses: clipping, aggregation, advantages, importance weights, filters."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import MAX_INT32, SpecModel, field_errors


class Clip(SpecModel):
    """Clip range of the importance ratio, from 1 - low to 1 + high.

    Clipping acts only with several updates per step (minibatchSequences, epochsPerStep) or maxStaleness
    above 0.
    """

    low: float = Field(0.2, gt=0, lt=1, description="Largest decrease of the ratio below 1.")
    high: float = Field(0.2, gt=0, description="Largest increase of the ratio above 1.")
    dual: float | None = Field(
        None,
        gt=1,
        description="Dual clip (Ye et al. 2020): for negative advantages the loss is at most this "
        "multiple of the advantage's magnitude; null: unbounded, or 3 with maxStaleness above 0, as in verl.",
    )


class RatioLevel(StrEnum):
    """Token: the ratio of each token.

    Sequence: the ratio of the whole response. SequenceMean: the ratio of the whole response as the
    geometric mean over its tokens (GSPO).
    """

    TOKEN = "Token"
    SEQUENCE = "Sequence"
    SEQUENCE_MEAN = "SequenceMean"


class LossAggregation(StrEnum):
    """SequenceMean: mean over each response's tokens, then over responses.

    TokenMean: mean over all response tokens. SequenceSum: sum over each response's tokens, then the mean
    over responses. FixedLength: SequenceSum divided by rollout.sampling.maxTokens.
    """

    SEQUENCE_MEAN = "SequenceMean"
    TOKEN_MEAN = "TokenMean"
    SEQUENCE_SUM = "SequenceSum"
    FIXED_LENGTH = "FixedLength"


class AdvantageCenter(StrEnum):
    """None: nothing.

    Batch: the mean of the step. Group: the mean over the samples of the same prompt. LeaveOneOut: the mean
    over the other samples of the same prompt. OptimalToken: at each token the mean over the samples of the
    same prompt that are as long, weighted by the squared gradient norms of their tokens so far (Li et al.
    2026).
    """

    NONE = "None"
    BATCH = "Batch"
    GROUP = "Group"
    LEAVE_ONE_OUT = "LeaveOneOut"
    OPTIMAL_TOKEN = "OptimalToken"


class AdvantageScale(StrEnum):
    """None: no division.

    Batch: the standard deviation of the centred returns over the step. BatchOfReturns: the standard deviation
    of the returns themselves over the step (TRL's batch). Group: the standard deviation over the samples of
    the same prompt. GroupMean: the mean over the samples of the same prompt, for rewards that are never
    negative (MaxRL).
    """

    NONE = "None"
    BATCH = "Batch"
    BATCH_OF_RETURNS = "BatchOfReturns"
    GROUP = "Group"
    GROUP_MEAN = "GroupMean"


class RewardAggregation(StrEnum):
    """SumThenNormalize: the weighted sum of the rewards is normalised.

    NormalizeThenSum: each reward is normalised by itself, and the weighted sum of these over the step again
    (Liu et al. 2026, GDPO).
    """

    SUM_THEN_NORMALIZE = "SumThenNormalize"
    NORMALIZE_THEN_SUM = "NormalizeThenSum"


class CreditAssignment(StrEnum):
    """Response: each token has the advantage of its response.

    Steps: each token has the advantage of the steps, or turns, that end at the token or after it. All step
    rewards of a group are normalised together (Shao et al. 2024, process supervision); with reinforcePlusPlus
    they add up to the token's return.
    """

    RESPONSE = "Response"
    STEPS = "Steps"


class AdvantageNormalization(SpecModel):
    """Advantage = (return - center) / (scale + epsilon)."""

    center: AdvantageCenter = Field(description="Value that is subtracted from the return.")
    scale: AdvantageScale = Field(
        AdvantageScale.NONE, description="Value by which the centred return is divided."
    )
    epsilon: float = Field(
        1.0e-6,
        ge=0,
        description="Added to the scale, so that nearly equal returns do not produce large advantages.",
    )
    pass_at_k: int | None = Field(
        None,
        ge=2,
        le=MAX_INT32,
        description="Reward the best of every passAtK responses to a prompt instead of each response (Chen "
        "et al. 2025); needs center Group and scale Group or None. null: each response.",
    )

    @model_validator(mode="after")
    def _pass_at_k_of_groups(self) -> "AdvantageNormalization":
        scales = (AdvantageScale.NONE, AdvantageScale.GROUP)
        if self.pass_at_k is not None and (
            self.center is not AdvantageCenter.GROUP or self.scale not in scales
        ):
            text = "compares the best of subsets of a group: set center to Group and scale to Group or None"
            raise field_errors("Normalization", (("passAtK",), self.pass_at_k, text))
        return self

    @model_validator(mode="after")
    def _scale_has_a_center(self) -> "AdvantageNormalization":
        fitting = {
            AdvantageScale.BATCH: set(AdvantageCenter)
            - {AdvantageCenter.NONE, AdvantageCenter.OPTIMAL_TOKEN},
            AdvantageScale.BATCH_OF_RETURNS: set(AdvantageCenter)
            - {AdvantageCenter.NONE, AdvantageCenter.OPTIMAL_TOKEN},
            AdvantageScale.GROUP: {AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT},
            AdvantageScale.GROUP_MEAN: {AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT},
        }
        if self.center not in fitting.get(self.scale, set(AdvantageCenter)):
            raise field_errors(
                "Normalization",
                (
                    ("scale",),
                    self.scale,
                    "needs a center over the same samples, else equal returns would grow without bound: "
                    "set center to "
                    + (
                        "Group or LeaveOneOut"
                        if self.scale in (AdvantageScale.GROUP, AdvantageScale.GROUP_MEAN)
                        else "Batch, Group or LeaveOneOut"
                    )
                    + ", or scale to None",
                ),
            )
        return self


class ImportanceLevel(StrEnum):
    """Token: one weight per token.

    Sequence: the product over the response's tokens. SequenceMean: the geometric mean over the response's
    tokens.
    """

    TOKEN = "Token"
    SEQUENCE = "Sequence"
    SEQUENCE_MEAN = "SequenceMean"


class OutOfBoundsWeights(StrEnum):
    """Truncate: the weight is set to the bound. Mask: the weight's tokens are excluded from the loss."""

    TRUNCATE = "Truncate"
    MASK = "Mask"


class WeightBounds(SpecModel):
    """Bounds of an importance weight."""

    low: float = Field(ge=0, description="Lower bound.")
    high: float = Field(gt=0, description="Upper bound.")

    @model_validator(mode="after")
    def _order(self) -> "WeightBounds":
        if self.low >= self.high:
            raise field_errors("WeightBounds", (("low",), self.low, f"must be below high ({self.high})"))
        return self


class OffPolicyMask(SpecModel):
    """Mask of negative responses that the policy has moved away from (DeepSeek-V3.2).

    A response with a negative advantage is excluded from the loss where the mean over its tokens of log
    p_sampled - log p is above the threshold.
    """

    threshold: float = Field(gt=0, description="Largest mean log ratio, in nats per token, such as 0.5.")


class ImportanceCorrection(SpecModel):
    """Importance weighting by p_old / p_behaviour.

    The weights correct for samples whose log-probabilities differ from the trainer's, because of the
    engine's numerics or because of older weights.
    """

    level: ImportanceLevel = Field(ImportanceLevel.TOKEN, description="Level of the importance weights.")
    low: float | None = Field(
        None,
        ge=0,
        description="Lower bound of the weights; null: 0, or 0.5 where outside is Mask (IcePop).",
    )
    high: float = Field(5.0, gt=0, description="Upper bound of the weights.")
    outside: OutOfBoundsWeights = Field(
        OutOfBoundsWeights.TRUNCATE, description="Treatment of weights outside the bounds."
    )
    sequence_mask: WeightBounds | None = Field(
        None,
        description="Bounds of the geometric mean of a response's token weights, outside which the whole "
        "response is excluded from the loss, besides the weights; null: no response is.",
    )

    @property
    def lower_bound(self) -> float:
        """Lower bound that is applied."""
        if self.low is not None:
            return self.low
        return 0.5 if self.outside is OutOfBoundsWeights.MASK else 0.0

    @model_validator(mode="after")
    def _bounds(self) -> "ImportanceCorrection":
        if self.lower_bound >= self.high:
            raise field_errors(
                "Importance", (("low",), self.lower_bound, f"must be below high ({self.high})")
            )
        return self


class OverlongPenalty(SpecModel):
    """Reward penalty near the length limit (Yu et al. 2025, DAPO, eq. 13).

    The penalty is 0 up to maxTokens - bufferTokens tokens and then falls linearly to -penalty at
    maxTokens.
    """

    buffer_tokens: int = Field(
        ge=1,
        le=MAX_INT32,
        description="Tokens before rollout.sampling.maxTokens over which the penalty grows.",
    )
    penalty: float = Field(1.0, gt=0, description="Penalty of a response of maxTokens tokens.")


class DynamicSamplingSpec(SpecModel):
    """Dynamic sampling (Yu et al. 2025, DAPO).

    Groups whose samples all have the same reward carry no gradient; they are dropped and other prompts are
    sampled in their place.
    """

    by: str | None = Field(
        None,
        max_length=63,
        description="Name of the reward that is compared; null: the weighted sum of all rewards, which a "
        "reward for length or form makes different in nearly every group. A group to which the named reward "
        "does not apply is kept.",
    )
    max_refills: int = Field(
        10,
        ge=0,
        le=MAX_INT32,
        description="Refills of a step, of promptsPerStep groups each, before the step is completed "
        "with groups of equal rewards; 0: no group is dropped.",
    )
