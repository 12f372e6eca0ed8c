"""Rewards of the steps of a response: the spec of its division into steps, and the checks of its use."""

from pydantic import Field

from kubealign.spec.base import SpecModel

#: Message for `steps` of a reward that is no function.
STEPS_OF_FUNCTIONS = "only a function or a plugin returns rewards of steps: remove it"

#: Message for `steps` of a reward of the scope Group.
STEPS_OF_SAMPLES = "needs the tokens of each response, which a call for a group does not have: set Sample"

#: Message for `steps` of a job with a workflow.
STEPS_OF_WORKFLOWS = "a workflow gives the rewards of its turns by episode.reward: remove it"

#: Message for credit Steps without a reward of steps.
NO_STEPS_TO_CREDIT = "no reward has steps: set rewards[].steps or rewards[].episode, or credit to Response"


class RewardSteps(SpecModel):
    """Division of a response into steps, each with a reward of its own."""

    separator: str = Field(
        "\n\n",
        min_length=1,
        max_length=64,
        description="Text between two steps. It belongs to the step before it; parts of white space are no "
        "steps.",
    )


def step_reward_problem(algorithm: str, credits_steps: bool, has_workflow: bool) -> str | None:
    """Return the problem of a reward with steps in a job, or None.

    Args:
        algorithm: Field of the union Algorithm.
        credits_steps: The algorithm gives the tokens of a step the step's reward, or does not learn.
    """
    if has_workflow:
        return STEPS_OF_WORKFLOWS
    if not credits_steps:
        remedy = "remove it, or use ppo, or grpo or reinforcePlusPlus with credit Steps"
        return f"{algorithm} credits whole responses: {remedy}"
    return None
