"""What the policy losses are put together from."""

from enum import StrEnum

from pydantic import Field, model_validator

from kubealign.spec.base import MOST, Spec, incoherent


class Clip(Spec):
    """The ratio's clip range, 1 - low to 1 + high."""

    low: float = Field(0.2, gt=0, lt=1, description="How far the ratio may fall below 1 with gradient.")
    high: float = Field(0.2, gt=0, description="How far the ratio may rise above 1 with gradient.")
    dual: float | None = Field(
        None,
        gt=1,
        description="Where the advantage is negative, the loss is at most this times its size (Ye et al. "
        "2020); null: unbounded.",
    )


class RatioLevel(StrEnum):
    """Of what the policy's probability is compared with the old one. Token: of each token. Sequence: of the
    whole response. SequenceMean: of the whole response, as the geometric mean over its tokens (GSPO)."""

    TOKEN = "Token"
    SEQUENCE = "Sequence"
    SEQUENCE_MEAN = "SequenceMean"


class LossAggregation(StrEnum):
    """How the tokens' losses become one number. SequenceMean: mean over each response's tokens, then over
    responses. TokenMean: mean over all response tokens. SequenceSum: sum over each response's tokens, then
    the mean over responses. FixedLength: as SequenceSum, divided by rollout.sampling.maxTokens."""

    SEQUENCE_MEAN = "SequenceMean"
    TOKEN_MEAN = "TokenMean"
    SEQUENCE_SUM = "SequenceSum"
    FIXED_LENGTH = "FixedLength"


class Center(StrEnum):
    """What is taken from a return. None: nothing. Batch: the mean of the step. Group: the mean of its
    prompt's samples. LeaveOneOut: the mean of its prompt's other samples."""

    NONE = "None"
    BATCH = "Batch"
    GROUP = "Group"
    LEAVE_ONE_OUT = "LeaveOneOut"


class Scale(StrEnum):
    """What the rest is divided by. None: nothing. Batch: its standard deviation over the step. Group: that
    over its prompt's samples."""

    NONE = "None"
    BATCH = "Batch"
    GROUP = "Group"


class Normalization(Spec):
    """How returns become advantages: (return - center) / (scale + epsilon)."""

    center: Center = Field(description="What is taken from the return.")
    scale: Scale = Field(Scale.NONE, description="What the rest is divided by.")
    epsilon: float = Field(
        1.0e-6, ge=0, description="Added to the scale; keeps returns that hardly differ from being blown up."
    )

    @model_validator(mode="after")
    def _scale_has_a_center(self) -> "Normalization":
        fitting = {
            Scale.BATCH: set(Center) - {Center.NONE},
            Scale.GROUP: {Center.GROUP, Center.LEAVE_ONE_OUT},
        }
        if self.center not in fitting.get(self.scale, set(Center)):
            raise incoherent(
                "Normalization",
                (
                    ("scale",),
                    self.scale,
                    "divides what is left after a center of the same samples, else returns that are all "
                    "alike grow without bound: set center to "
                    + ("Group or LeaveOneOut" if self.scale is Scale.GROUP else "Batch, Group or LeaveOneOut")
                    + ", or scale to None",
                ),
            )
        return self


class ImportanceLevel(StrEnum):
    """Token: a weight for each token. Sequence: the product over the response's tokens. SequenceMean: its
    geometric mean."""

    TOKEN = "Token"
    SEQUENCE = "Sequence"
    SEQUENCE_MEAN = "SequenceMean"


class OutOfBounds(StrEnum):
    """What becomes of a weight outside the bounds. Truncate: it is set to the bound. Mask: its tokens count
    for nothing."""

    TRUNCATE = "Truncate"
    MASK = "Mask"


class Importance(Spec):
    """The weight p_old / p_behaviour of what was sampled by other numbers than the trainer's: by an engine
    that rounds otherwise, or by older weights."""

    level: ImportanceLevel = Field(ImportanceLevel.TOKEN, description="What has a weight of its own.")
    low: float = Field(0.0, ge=0, description="Lower bound.")
    high: float = Field(5.0, gt=0, description="Upper bound.")
    outside: OutOfBounds = Field(OutOfBounds.TRUNCATE, description="What becomes of weights outside them.")

    @model_validator(mode="after")
    def _bounds(self) -> "Importance":
        if self.low >= self.high:
            raise incoherent("Importance", (("low",), self.low, f"must be below high ({self.high})"))
        return self


class OverlongPenalty(Spec):
    """A reward that falls before the length limit (Yu et al. 2025, "DAPO", eq. 13): 0 up to maxTokens -
    buffer, then linearly down to -penalty at maxTokens."""

    buffer_tokens: int = Field(
        ge=1, le=MOST, description="Tokens before rollout.sampling.maxTokens over which it falls."
    )
    penalty: float = Field(1.0, gt=0, description="What a response of maxTokens tokens loses.")


class DynamicSampling(Spec):
    """Groups whose samples all have the same reward teach nothing: they are dropped, and others are sampled
    in their place (Yu et al. 2025, "DAPO")."""

    max_refills: int = Field(
        10,
        ge=0,
        le=MOST,
        description="After this many times promptsPerStep groups were dropped for one step, the step is "
        "filled with groups that teach nothing; 0: none is dropped.",
    )
