"""Role names of reward models."""

from kubealign.spec.sections.rewards import Reward


def reward_roles(reward: Reward) -> list[str]:
    """Return one role name for each of the reward's models, in their order.

    reward-NAME, or for an ensemble reward-NAME.0 and so on. No reward's name has a dot.
    """
    if reward.ensemble is None:
        return [f"reward-{reward.name}" for _ in reward.models]
    return [f"reward-{reward.name}.{index}" for index in range(len(reward.models))]
