"""Which groups teach something: dynamic sampling (Yu et al. 2025, "DAPO", section 3.2). Pure."""

from collections.abc import Sequence

from kubealign.spec.rewards import Reward
from kubealign_services.driver.ledger import Group

# Rewards that differ by less differ by rounding.
_ALIKE = 1e-9


class DynamicSampling:
    """Drops whole groups whose samples all have the same reward, so many for one step and no more.

    The reward is the weighted sum of the sources' scores as they came, before they are standardised.
    `dropped`: groups dropped since `next_step`."""

    def __init__(self, rewards: Sequence[Reward], most: int) -> None:
        """most: groups dropped for one step; 0: every group is trained on."""
        self._rewards = rewards
        self._most = most
        self.dropped = 0

    @property
    def keeps_all(self) -> bool:
        """Whether no group is ever dropped."""
        return self._most == 0

    def next_step(self) -> None:
        self.dropped = 0

    def drops(self, group: Group) -> bool:
        """Whether this group is dropped, which then counts."""
        if self.dropped >= self._most or not self._constant(group):
            return False
        self.dropped += 1
        return True

    def _constant(self, group: Group) -> bool:
        totals = [
            sum(reward.weight * group.score(sample, reward.name).reward for reward in self._rewards)
            for sample in group.rollouts
        ]
        return max(totals) - min(totals) <= _ALIKE
