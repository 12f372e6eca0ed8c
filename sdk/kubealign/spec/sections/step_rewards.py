"""Rewards of the steps of a response: the spec of its division into steps, and the checks of its use."""

from enum import StrEnum

from pydantic import Field

from kubealign.spec.base import SpecModel

#: Message for `steps` of a reward that is neither a function nor a model.
STEPS_OF_FUNCTIONS = "only a function, a plugin or a model gives rewards of steps: remove it"

#: Message for `steps` of a model whose scores go to the critic's process.
STEPS_OF_OWN_MODELS = "a model in the critic's process scores whole responses: set placement to Own"

#: Message for `attributes` of a reward with steps.
ONE_SCORE_OF_STEPS = "a model of steps has one score, the probability that the step is right: remove it"

#: Message for `aggregate` of a reward that is no model.
AGGREGATE_OF_MODELS = "a function gives a response without steps its reward itself: write Sum"

#: Message for `steps` of a reward of the scope Group.
STEPS_OF_SAMPLES = "needs the tokens of each response, which a call for a group does not have: set Sample"

#: Message for `steps` of a job with a workflow.
STEPS_OF_WORKFLOWS = "a workflow gives the rewards of its turns by episode.reward: remove it"

#: Message for credit Steps without a reward of steps.
NO_STEPS_TO_CREDIT = "no reward has steps: set rewards[].steps or rewards[].episode, or credit to Response"


class StepAggregation(StrEnum):
    """Reward of a response from the scores of its steps.

    Sum: each step is rewarded with its score, at its last token; the response's reward is their sum. Minimum,
    Product, Mean, Last: the response alone has a reward, the lowest score, the product or the mean of all
    scores, or the score of the last step.
    """

    SUM = "Sum"
    MINIMUM = "Minimum"
    PRODUCT = "Product"
    MEAN = "Mean"
    LAST = "Last"


class RewardSteps(SpecModel):
    """Division of a response into steps, each with a score of its own.

    A function returns the scores as `steps`. The score of a process reward model is the probability that the
    step is right: the sigmoid of its output at the step's last token, or with two outputs the softmax of the
    second.
    """

    separator: str = Field(
        "\n\n",
        min_length=1,
        max_length=64,
        description="Text between two steps. It belongs to the step before it; parts of white space are no "
        "steps.",
    )
    aggregate: StepAggregation = Field(
        StepAggregation.SUM,
        description="Only with model: reward of the response from the scores of its steps. A response "
        "without steps has the reward 0.",
    )

    @property
    def rewards_steps(self) -> bool:
        """True if each step is rewarded, False if the response alone is."""
        return self.aggregate is StepAggregation.SUM


def step_reward_problem(
    steps: RewardSteps, algorithm: str, credits_steps: bool, has_workflow: bool
) -> str | None:
    """Return the problem of a reward with steps in a job, or None.

    Args:
        algorithm: Field of the union Algorithm.
        credits_steps: The algorithm gives the tokens of a step the step's reward, or does not learn.
    """
    if has_workflow:
        return STEPS_OF_WORKFLOWS
    if steps.rewards_steps and not credits_steps:
        remedy = (
            "remove it, or use ppo, or grpo or reinforcePlusPlus with credit Steps; of a model, aggregate "
            "other than Sum rewards responses"
        )
        return f"{algorithm} credits whole responses: {remedy}"
    return None
