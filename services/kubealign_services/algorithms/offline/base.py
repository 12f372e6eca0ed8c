"""Base class of algorithms that learn from given rows: no advantages, no critic, no reference by default."""

from kubealign_services.batch.packed import Batch


class OfflineAlgorithm:
    """Base of the algorithms without rollouts."""

    needs_old_logprobs = False
    needs_reference = False
    needs_critic = False

    def value_objective(self) -> None:
        return None

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add nothing."""
        return {}
