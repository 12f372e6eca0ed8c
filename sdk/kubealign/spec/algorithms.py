"""The algorithms, each with its own fields and defaults. Their maths: `kubealign_services.algorithms`."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field, model_validator

from kubealign.spec.base import MOST, Spec, Union, exactly_one, incoherent
from kubealign.spec.training import Fraction


class KLPlacement(StrEnum):
    """Reward: the divergence is taken from the reward. Loss: it is added to the loss."""

    REWARD = "Reward"
    LOSS = "Loss"


class KLEstimator(StrEnum):
    """Schulman's estimators of KL(policy || reference) from the policy's own samples; r is the reference's
    probability of a token over the policy's. K1: -log r. K2: (log r)^2 / 2. K3: r - 1 - log r."""

    K1 = "K1"
    K2 = "K2"
    K3 = "K3"


class FixedKL(Spec):
    """A coefficient that stays as it is."""

    coefficient: float = Field(
        0.05, ge=0, description="Weight of the divergence; 0: none, and no reference is started."
    )


class AdaptiveKL(Spec):
    """The coefficient follows a target divergence (Ziegler et al. 2019)."""

    initial_coefficient: float = Field(0.05, gt=0, description="Weight of the divergence at the first step.")
    target: float = Field(6.0, gt=0, description="Divergence wanted, in nats per sequence.")
    horizon: float = Field(10_000.0, gt=0, description="Sequences over which the coefficient follows.")


class KL(Spec):
    """The pull towards the reference. Exactly one of fixed and adaptive must be set; fixed with
    coefficient 0 needs no reference."""

    placement: KLPlacement = Field(KLPlacement.REWARD, description="Where the divergence enters.")
    estimator: KLEstimator = Field(KLEstimator.K1, description="How it is estimated.")
    fixed: FixedKL | None = Field(None, description="A constant coefficient.")
    adaptive: AdaptiveKL | None = Field(
        None, description="A coefficient that steers the divergence; placement Reward only."
    )

    @model_validator(mode="after")
    def _one(self) -> "KL":
        exactly_one(self, ["fixed", "adaptive"], example="fixed: {coefficient: 0.05}")
        return self

    @property
    def active(self) -> bool:
        return self.adaptive is not None or (self.fixed is not None and self.fixed.coefficient > 0)


class Clip(Spec):
    """The ratio's clip range, 1 - low to 1 + high."""

    low: float = Field(0.2, gt=0, lt=1, description="How far the ratio may fall below 1 with gradient.")
    high: float = Field(0.2, gt=0, description="How far the ratio may rise above 1 with gradient.")


class GAE(Spec):
    """Generalised advantage estimation (Schulman et al. 2016)."""

    gamma: Fraction = Field(1.0, description="Discount of a token's reward by the tokens before it.")
    lambda_: Fraction = Field(
        0.95, alias="lambda", description="1: returns as sampled; 0: one step, then the critic."
    )


class _OnPolicy(Spec):
    """What every algorithm that learns from its own samples has."""

    online: ClassVar[bool] = True
    critic: ClassVar[bool] = False
    data: ClassVar[str] = "prompts"

    prompts_per_step: int = Field(64, ge=1, le=MOST, description="Prompts of one step.")
    samples_per_prompt: int = Field(1, ge=1, le=MOST, description="Responses sampled to each prompt.")
    minibatch_sequences: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Sequences of one optimiser step; must divide those of a step. null: all of a step.",
    )
    epochs_per_step: int = Field(
        1, ge=1, le=MOST, description="Times that a step's sequences are gone through."
    )
    clip: Clip = Field(Clip(), description="The ratio's clip range.")
    kl: KL = Field(KL(fixed=FixedKL()), description="The pull towards the reference.")
    entropy_coefficient: float = Field(
        0.0, ge=0, description="Bonus on the mean entropy of the policy over response tokens."
    )

    @property
    def sequences_per_step(self) -> int:
        return self.prompts_per_step * self.samples_per_prompt

    @model_validator(mode="after")
    def _minibatches(self) -> "_OnPolicy":
        size, total = self.minibatch_sequences, self.sequences_per_step
        if size is not None and total % size != 0:
            nearest = max(divisor for divisor in range(1, min(size, total) + 1) if total % divisor == 0)
            raise incoherent(
                type(self).__name__,
                (
                    ("minibatchSequences",),
                    size,
                    f"must divide promptsPerStep x samplesPerPrompt ({self.prompts_per_step} x "
                    f"{self.samples_per_prompt} = {total}), such as {nearest}",
                ),
            )
        return self

    @model_validator(mode="after")
    def _adaptive_in_reward(self) -> "_OnPolicy":
        if self.kl.adaptive is not None and self.kl.placement is KLPlacement.LOSS:
            raise incoherent(
                type(self).__name__,
                (
                    ("kl", "adaptive"),
                    self.kl.adaptive,
                    "an adaptive coefficient steers KL in the reward: set placement to Reward, or use fixed",
                ),
            )
        return self

    @property
    def updates_per_step(self) -> int:
        return self.epochs_per_step * (
            self.sequences_per_step // (self.minibatch_sequences or self.sequences_per_step)
        )


class PPO(_OnPolicy):
    """Proximal policy optimisation with a learned critic (Schulman et al. 2017; Ouyang et al. 2022)."""

    critic: ClassVar[bool] = True

    gae: GAE = Field(GAE(), description="How advantages are made from rewards and values.")
    value_clip: float = Field(
        0.2, ge=0, description="Bound on a value's move from its old one in the loss; 0: none."
    )
    value_coefficient: float = Field(0.5, gt=0, description="Scale of the critic's loss.")
    whiten_advantages: bool = Field(
        True, description="Mean 0 and standard deviation 1 over the step's response tokens."
    )
    critic_warmup_steps: int = Field(
        0, ge=0, le=MOST, description="First steps in which only the critic learns."
    )


class RLOO(_OnPolicy):
    """REINFORCE leave-one-out (Ahmadian et al. 2024): the whole response is one action."""

    samples_per_prompt: int = Field(
        4,
        ge=2,
        le=MOST,
        description="Responses sampled to each prompt; the baseline of one is the mean of the others.",
    )
    whiten_advantages: bool = Field(
        False, description="Mean 0 and standard deviation 1 over the step's sequences."
    )

    @model_validator(mode="after")
    def _kl_in_reward(self) -> "RLOO":
        if self.kl.active and self.kl.placement is not KLPlacement.REWARD:
            raise incoherent(
                "RLOO",
                (
                    ("kl", "placement"),
                    self.kl.placement,
                    "RLOO takes the KL from the sequence's reward: set Reward",
                ),
            )
        return self


class AdvantageScale(StrEnum):
    """GroupStd: divided by the group's standard deviation (DeepSeekMath). None: not divided (Dr. GRPO)."""

    GROUP_STD = "GroupStd"
    NONE = "None"


class LossAggregation(StrEnum):
    """SequenceMean: mean over each response's tokens, then over responses. TokenMean: mean over all response
    tokens."""

    SEQUENCE_MEAN = "SequenceMean"
    TOKEN_MEAN = "TokenMean"


class GRPO(_OnPolicy):
    """Group relative policy optimisation (Shao et al. 2024)."""

    samples_per_prompt: int = Field(
        8, ge=2, le=MOST, description="Responses sampled to each prompt; each is compared with the others."
    )
    kl: KL = Field(
        KL(placement=KLPlacement.LOSS, estimator=KLEstimator.K3, fixed=FixedKL(coefficient=0.04)),
        description="The pull towards the reference.",
    )
    advantage_scale: AdvantageScale = Field(
        AdvantageScale.GROUP_STD, description="What a reward's distance from the group's mean is divided by."
    )
    aggregation: LossAggregation = Field(
        LossAggregation.SEQUENCE_MEAN, description="How the tokens' losses become one number."
    )


class _Offline(Spec):
    """What every algorithm that learns from given rows has."""

    online: ClassVar[bool] = False
    critic: ClassVar[bool] = False

    rows_per_step: int = Field(64, ge=1, le=MOST, description="Rows of one optimiser step.")
    max_epochs: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="End after this many times through the data, if maxSteps has not ended the job before.",
    )

    @property
    def updates_per_step(self) -> int:
        return 1


class SFT(_Offline):
    """Supervised fine-tuning: cross-entropy on the response's tokens."""

    data: ClassVar[str] = "demonstrations"


class Pooling(StrEnum):
    """LastToken: the score at the response's last token. ResponseSum: the sum of the scores of the response's
    tokens."""

    LAST_TOKEN = "LastToken"
    RESPONSE_SUM = "ResponseSum"


class BradleyTerry(Spec):
    """-log sigmoid(score of the chosen - score of the rejected), on preferences (Bradley and Terry 1952)."""

    data: ClassVar[str] = "preferences"


class Regression(Spec):
    """Squared error between score and rating, on ratings."""

    data: ClassVar[str] = "ratings"


class RewardObjective(Union):
    """What the reward model learns from."""

    default_member = "bradley_terry"

    bradley_terry: BradleyTerry | None = Field(
        None, description="From preferences: the chosen should score higher."
    )
    regression: Regression | None = Field(None, description="From ratings: the score should be the rating.")


class RewardModel(_Offline):
    """A scalar head on a language model, for use as a reward."""

    objective: RewardObjective = Field(
        RewardObjective(bradley_terry=BradleyTerry()), description="What the scores are fitted to."
    )
    pooling: Pooling = Field(
        Pooling.LAST_TOKEN, description="How a response's token scores become its score."
    )
    language_model_coefficient: float = Field(
        0.0,
        ge=0,
        description="Weight of the language-model loss on the chosen response; keeps the trunk's knowledge.",
    )
    score_penalty: float = Field(
        0.0, ge=0, description="Weight of the mean squared score, which keeps scores near zero."
    )

    @property
    def data(self) -> str:
        return str(self.objective.value.data)


class Algorithm(Union):
    """How the policy is aligned."""

    sft: SFT | None = Field(None, description="Imitate demonstrations.")
    reward_model: RewardModel | None = Field(None, description="Learn to score responses.")
    ppo: PPO | None = Field(None, description="Learn from rewards, with a critic.")
    rloo: RLOO | None = Field(
        None, description="Learn from rewards; a sample's baseline is its group's other samples."
    )
    grpo: GRPO | None = Field(None, description="Learn from rewards relative to the group's.")
