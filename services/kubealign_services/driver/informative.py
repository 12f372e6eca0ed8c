"""Dynamic sampling: drops groups without learning signal (Yu et al. 2025, "DAPO", section 3.2). Pure."""

from collections.abc import Sequence

from kubealign.spec.rewards import Reward
from kubealign_services.driver.ledger import Group

# Smaller differences between rewards are rounding errors.
_ALIKE = 1e-9


class DynamicSampling:
    """Drops complete groups whose samples all have the same reward, up to a maximum per step.

    The reward is the weighted sum of the sources' raw scores, before standardisation. `dropped` counts the
    groups dropped since the last reset.
    """

    def __init__(self, rewards: Sequence[Reward], most: int) -> None:
        """Set up the filter.

        Args:
            max_dropped: Most groups dropped per step; 0: every group is trained on.
        """
        self._rewards = rewards
        self._most = most
        self.dropped = 0

    @property
    def keeps_all(self) -> bool:
        """True if no group is ever dropped."""
        return self._most == 0

    def next_step(self) -> None:
        """Reset the count at the start of a step."""
        self.dropped = 0

    def drops(self, group: Group) -> bool:
        """Return True if this group must be dropped, and count it."""
        if self.dropped >= self._most or not self._constant(group):
            return False
        self.dropped += 1
        return True

    def _constant(self, group: Group) -> bool:
        """Return True if all samples of the group have the same total reward."""
        totals = [
            sum(reward.weight * group.score(sample, reward.name).reward for reward in self._rewards)
            for sample in group.rollouts
        ]
        return max(totals) - min(totals) <= _ALIKE
