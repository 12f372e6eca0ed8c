"""Role names of reward models."""

from collections.abc import Iterable

from kubealign.spec.sections.rewards import Reward


def reward_roles(reward: Reward) -> list[str]:
    """Return one role name for each of the reward's models, in their order.

    reward-NAME, or for an ensemble reward-NAME.0 and so on. No reward's name has a dot.
    """
    if reward.ensemble is None:
        return [f"reward-{reward.name}" for _ in reward.models]
    return [f"reward-{reward.name}.{index}" for index in range(len(reward.models))]


def reward_of_role(rewards: Iterable[Reward], role: str) -> Reward:
    """Return the reward that has a model with this role name."""
    return next(reward for reward in rewards if role in reward_roles(reward))
