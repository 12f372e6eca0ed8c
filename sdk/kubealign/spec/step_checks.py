"""Rules of rewards and labels of steps, which span several fields of a spec."""

from collections.abc import Iterator
from typing import Any

from kubealign.spec.algorithms import Algorithm, CreditAssignment
from kubealign.spec.base import field_alias
from kubealign.spec.held_out_rows import list_held_out_rows
from kubealign.spec.paths import DocumentPath
from kubealign.spec.sections.data import Data
from kubealign.spec.sections.rewards import Reward
from kubealign.spec.sections.rollout import Rollout
from kubealign.spec.sections.step_rewards import NO_STEPS_TO_CREDIT, step_reward_problem
from kubealign.spec.sections.validation import Validation

#: Messages for rows whose format has no labels of steps, where a process reward model is trained.
NO_STEP_LABELS = "stepClassification learns from the steps of responses: name the column of their labels"
NO_STEP_LABELS_OF_TOKENS = (
    "stepClassification finds the steps in the text of responses: set format.text or format.chat"
)

#: Message for labels of steps that no algorithm reads.
LABELS_OF_STEPS_UNREAD = "only rewardModel with objective stepClassification reads labels of steps: remove it"

_Problem = tuple[DocumentPath, Any, str]


def check_step_rewards(algorithm: Algorithm, rollout: Rollout, rewards: list[Reward]) -> Iterator[_Problem]:
    """Yield the problems of rewards of steps, and of an algorithm that has none to credit."""
    entry, name = algorithm.value, field_alias(Algorithm, algorithm.member)
    credits_steps = entry.credits_steps or algorithm.evaluate is not None
    for index, reward in enumerate(rewards):
        if reward.steps is None:
            continue
        problem = step_reward_problem(reward.steps, name, credits_steps, rollout.workflow is not None)
        if problem is not None:
            yield ("rewards", index, "steps"), reward.steps, problem
    has_steps = any(
        reward.episode is not None or (reward.steps is not None and reward.steps.rewards_steps)
        for reward in rewards
    )
    credit = getattr(entry, "credit", None)
    if credit is CreditAssignment.STEPS and not has_steps:
        yield ("algorithm", name, "credit"), credit, NO_STEPS_TO_CREDIT


def check_step_labels(algorithm: Algorithm, data: Data, validation: Validation | None) -> Iterator[_Problem]:
    """Yield the problems of labels of steps that are missing, or that nothing reads."""
    scores_steps = getattr(algorithm.value, "scores_steps", False)
    entries: list[tuple[DocumentPath, Data]] = [(("data", data.member), data)]
    entries += [(rows.rows_path, rows.data) for rows in list_held_out_rows(validation)]
    for rows_path, entry in entries:
        if entry.ratings is None:
            continue
        layout = entry.ratings.format
        path = (*rows_path, "format", layout.member)
        steps = None if layout.tokens is not None else layout.value.steps
        if not scores_steps and steps is not None:
            yield (*path, "steps"), steps, LABELS_OF_STEPS_UNREAD
        elif scores_steps and layout.tokens is not None:
            yield path, layout.tokens, NO_STEP_LABELS_OF_TOKENS
        elif scores_steps and steps is None:
            yield (*path, "steps"), None, NO_STEP_LABELS
