"""Base classes of the algorithm specs and the properties by which other code tells algorithms apart."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from kubealign.spec.algorithms.teacher_distribution import TeacherDistribution
from kubealign.spec.base import MAX_INT32, SpecModel


class ResultKind(StrEnum):
    """Kind of result of a job.

    POLICY: a causal language model. REWARD_MODEL: a model that scores responses. DATA: rows, no weights.
    METRICS: measurements of models that exist already.
    """

    POLICY = "policy"
    REWARD_MODEL = "reward model"
    DATA = "data"
    METRICS = "metrics"

    @property
    def is_model(self) -> bool:
        """True for the result of training."""
        return self in (ResultKind.POLICY, ResultKind.REWARD_MODEL)


class Requirement(StrEnum):
    """Degree to which an algorithm requires an input."""

    NEEDED = "needed"
    ALLOWED = "allowed"
    NONE = "none"


class AlgorithmSpec(SpecModel):
    """Base class of all members of the `Algorithm` union."""

    #: Samples each step's batch from the policy and learns from rewards.
    online: ClassVar[bool] = False
    #: True if `rollout.workflow` produces the samples.
    runs_workflows: ClassVar[bool] = False
    #: True if a response that a workflow produces may have several sequences.
    accepts_branches: ClassVar[bool] = False
    #: Needs rollout workers, even without sampled validation.
    samples: ClassVar[bool] = False
    #: Adds one response of the reference model to the samples of each prompt.
    reference_sample: ClassVar[bool] = False
    #: Bounds an importance ratio, by a clip range or a trust region.
    bounds_ratio: ClassVar[bool] = False
    #: Trains a critic.
    critic: ClassVar[bool] = False
    #: Reads preferences with a rating for each response.
    rated: ClassVar[bool] = False
    #: Pairs each row's prompt with another row's response as well (the KL pairs of KTO).
    mismatched: ClassVar[bool] = False
    #: Can train on several turns of a conversation.
    turns: ClassVar[bool] = False
    #: Can read rows of token ids. False: needs the text or the messages of each row.
    reads_token_ids: ClassVar[bool] = True
    #: Learns from the distributions of a frozen teacher model.
    teacher: ClassVar[bool] = False
    #: Can have several teachers, each for the prompts of its own sources.
    several_teachers: ClassVar[bool] = False
    #: `module:Class` of the losses, in the services; None: a plugin, or a job that does not train.
    implementation: ClassVar[str | None] = None
    rewards: ClassVar[Requirement] = Requirement.NONE
    #: Another model than the policy's first weights as the reference.
    reference_model: ClassVar[Requirement] = Requirement.ALLOWED
    makes: ClassVar[ResultKind] = ResultKind.POLICY
    #: Peak learning rate of full fine-tuning where the spec names none: that of GRPO in DeepSeekMath (Shao et
    #: al. 2024), TRL's GRPOConfig and verl's actor.
    learning_rate: ClassVar[float] = 1.0e-6
    #: The same of the critic: verl's critic.
    critic_learning_rate: ClassVar[float] = 1.0e-5

    @property
    def needs_rewards(self) -> bool:
        """True if the job must name rewards."""
        return self.rewards is Requirement.NEEDED

    @property
    def credits_steps(self) -> bool:
        """True if tokens can be credited with rewards of steps or turns; False: with those of responses."""
        return False

    @property
    def sequences_per_row(self) -> int:
        """Sequences of one row of a step: 2 for a pair of responses, otherwise 1."""
        return 2 if getattr(self, "data", "") == "preferences" else 1

    @property
    def trains(self) -> bool:
        """True if the job has a trainer."""
        return self.makes.is_model

    @property
    def plugin(self) -> str | None:
        """Entry point of the plugin that implements the algorithm; None: implemented by kubealign."""
        return None

    @property
    def teacher_distribution(self) -> TeacherDistribution | None:
        """Candidates of the teacher and the divergence from it; None: the job has no such teacher."""
        return None

    @property
    def needs_reference_model(self) -> bool:
        """True if the job must name the model of the reference."""
        return self.reference_model is Requirement.NEEDED

    @property
    def uses_reference(self) -> bool:
        """True if a reference model's log-probabilities of the tokens are needed."""
        return False

    @property
    def updates_per_step(self) -> int:
        """Optimiser steps per step."""
        return 1

    def steps_of_data(self, rows: int) -> int | None:
        """Return the number of steps after which `rows` rows of training data end the job.

        None: the job repeats its data without end, such as a job without maxEpochs.
        """
        return None

    def known_steps(self, max_steps: int | None, rows: int | None) -> int | None:
        """Return the number of steps of a job; None: not known before the data is prepared.

        Args:
            max_steps: spec.maxSteps.
            rows: Number of rows of the prepared training data; None: not prepared yet.
        """
        if self.steps_of_data(1) is None:
            return max_steps
        if rows is None:
            return None
        limits = (max_steps, self.steps_of_data(rows))
        return min(steps for steps in limits if steps is not None)


class RowAlgorithmSpec(AlgorithmSpec):
    """Fields of all algorithms that read given rows."""

    rows_per_step: int = Field(64, ge=1, le=MAX_INT32, description="Rows per step.")


class OfflineSpec(RowAlgorithmSpec):
    """Fields of all algorithms that learn from given rows."""

    max_epochs: int | None = Field(
        None,
        ge=1,
        le=MAX_INT32,
        description="End the job after this many epochs over the data, unless maxSteps ends it earlier. The "
        "learning rate schedule then ends with the last epoch.",
    )

    def steps_of_data(self, rows: int) -> int | None:
        return steps_of_epochs(self.max_epochs, rows, self.rows_per_step)


def steps_of_epochs(epochs: int | None, rows: int, rows_per_step: int) -> int | None:
    """Return the number of steps of epochs over `rows` rows, the last of which may be incomplete; None:
    without end.
    """
    return None if epochs is None else -(-epochs * rows // rows_per_step)
