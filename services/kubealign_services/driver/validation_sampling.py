"""Sampling of responses to all held-out prompts with the weights of one state."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from kubealign_services.data.prepared import Rows
from kubealign_services.driver.assembly import Sampled, assemble
from kubealign_services.driver.exchange import Exchange
from kubealign_services.driver.groups import GroupBuffer, GroupPlan
from kubealign_services.driver.state import JobState
from kubealign_services.driver.supply import ListSupply
from kubealign_services.driver.training_client import CriticClient
from kubealign_services.driver.validation_figures import ValidationSample, samples_of


class ValidationSampler:
    """Requests the groups of all rows at once. A prompt that fails after all retries is left out.

    Args:
        sources: Scorers on the bus.
        critic_rewards: Rewards scored by the critic.
        ensure_published: Waits until the rollout workers have a version.
    """

    def __init__(
        self,
        exchange: Exchange,
        rows: Rows,
        plan: GroupPlan,
        sources: Sequence[str],
        critic: CriticClient | None,
        critic_rewards: Sequence[str],
        ensure: Callable[[int], Awaitable[None]],
    ) -> None:
        self._exchange = exchange
        self._rows = rows
        self._plan = plan
        self._sources = tuple(sources)
        self._critic = critic
        self._critic_rewards = list(critic_rewards)
        self._ensure = ensure

    async def __call__(self, state: JobState) -> list[ValidationSample]:
        """Return one scored sample for each response. Raises UnrecoverableError, ShutdownRequested,
        RefitFailed.
        """
        await self._ensure(state.version)
        supply = ListSupply(self._rows, f"val@{state.step}")
        buffer = GroupBuffer(self._exchange, supply, self._plan, "validation", self._sources)
        try:
            groups = await buffer.take(state.version)
        finally:
            buffer.close()
        samples = samples_of(groups, self._sources)
        if self._critic is None or not self._critic_rewards or not groups:
            return samples
        sampling = self._plan.sampling
        sampling_info = Sampled(sampling.temperature or 1.0, sampling.max_tokens)
        batch = assemble(groups, (), sampling_info, state.version, reference=False)
        scores = await self._critic.scores(batch, self._critic_rewards)
        return [
            replace(
                sample, scores=sample.scores | {name: float(column[index]) for name, column in scores.items()}
            )
            for index, sample in enumerate(samples)
        ]
