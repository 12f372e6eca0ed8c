"""Under which names a job's models are prepared."""

from kubealign.spec.rewards import Reward


def reward_roles(reward: Reward) -> list[str]:
    """One for each of the reward's models, in their order: reward-NAME, or of an ensemble reward-NAME.0 and
    so on. No reward's name has a dot."""
    if reward.ensemble is None:
        return [f"reward-{reward.name}" for _ in reward.models]
    return [f"reward-{reward.name}.{index}" for index in range(len(reward.models))]
