"""Requests the scores of rewards that score all samples of a prompt at once."""

import asyncio
from collections.abc import Iterable, Sequence

from kubealign_services.messaging.contract import PayloadTooLarge
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.scoring.group_requests import pack_group


class GroupScoring:
    """Publishes a group once more for each scorer of groups, in one message.

    Args:
        sources: Scorers of groups.
    """

    def __init__(self, collector: RolloutCollector, sources: Iterable[str]) -> None:
        self._collector = collector
        self.sources = tuple(sources)

    async def request(self, group: RolloutGroup, sources: Sequence[str] | None = None) -> None:
        """Publish a group, if all its samples have arrived, for the scorers whose scores it lacks.

        Args:
            sources: Scorers to request; None: all.

        Raises UnrecoverableError if the bus does not carry the samples in one message.
        """
        if group.generated_at is None:
            return
        rollouts = list(group.rollouts.values())
        missing = [
            source
            for source in (self.sources if sources is None else sources)
            if group.list_unscored((source,))
        ]
        try:
            # Published concurrently: storing a message is mostly latency.
            await asyncio.gather(
                *(
                    self._collector.request_scores(pack_group(rollouts, source), group.renewals)
                    for source in missing
                )
            )
        except PayloadTooLarge as error:
            raise UnrecoverableError(
                f"the {group.samples} samples of {group.group_id} do not fit a message to "
                f"{', '.join(missing)}, whose scope is Group: {error}; lower samplesPerPrompt or "
                "rollout.sampling.maxTokens, drop long columns, or set scope: Sample"
            ) from error
