"""Dynamic sampling: drops groups without learning signal (Yu et al. 2025, "DAPO", section 3.2). Pure."""

from collections.abc import Sequence

from kubealign.spec.sections.rewards import Reward
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup

# Smaller differences between rewards are rounding errors.
_REWARD_TOLERANCE = 1e-9


class DynamicSamplingFilter:
    """Drops complete groups whose samples all have the same reward, up to a maximum per step.

    The reward is that of one source, or the weighted sum of the sources' raw scores, before standardisation.
    Samples to which the one source does not apply are not compared, and a group of such samples is kept.
    `dropped` counts the groups dropped since the last reset.
    """

    def __init__(self, rewards: Sequence[Reward], max_dropped: int, by: str | None = None) -> None:
        """Set up the filter.

        Args:
            max_dropped: Most groups dropped per step; 0: every group is trained on.
            by: Name of the reward that is compared; None: the weighted sum of all.
        """
        self._weights = {reward.name: reward.weight for reward in rewards if by in (None, reward.name)}
        self._compares_sum = by is None
        self._max_dropped = max_dropped
        self.dropped = 0

    @property
    def is_disabled(self) -> bool:
        """True if no group is ever dropped."""
        return self._max_dropped == 0

    def reset(self) -> None:
        """Reset the count at the start of a step."""
        self.dropped = 0

    def should_drop(self, group: RolloutGroup) -> bool:
        """Return True if this group must be dropped, and count it."""
        if self.dropped >= self._max_dropped or not self._has_constant_reward(group):
            return False
        self.dropped += 1
        return True

    def _has_constant_reward(self, group: RolloutGroup) -> bool:
        """Return True if all samples of the group have the same reward."""
        totals = []
        for sample in group.rollouts:
            total = group.weighted_reward(sample, self._weights)
            if total is not None or self._compares_sum:
                totals.append(total or 0.0)
        return bool(totals) and max(totals) - min(totals) <= _REWARD_TOLERANCE
