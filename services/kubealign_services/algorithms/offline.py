"""What algorithms that learn from given rows have in common: no advantages, no critic, no reference."""

from kubealign_services.batch.packed import Batch


class Offline:
    """Base of the algorithms without rollouts."""

    needs_old_logprobs = False
    needs_reference = False
    needs_critic = False

    def value_objective(self) -> None:
        return None

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Nothing to add."""
        return {}
