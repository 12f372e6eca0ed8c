"""Requests the scores of a batch once all its samples are generated, for jobs whose scorers do not score
samples as they arrive.
"""

import asyncio
from collections.abc import Container, Iterable, Sequence

from kubealign.v1 import rollout_pb2
from kubealign_services.roles.driver.rollouts.collector import RolloutCollector
from kubealign_services.roles.driver.rollouts.group_scoring import GroupScoring
from kubealign_services.roles.driver.rollouts.group_tracker import RolloutGroup
from kubealign_services.scoring.purposes import requested_purpose


class BatchScoring:
    """Publishes the rollouts of a complete batch once more, for one scorer each.

    Args:
        sources: Scorers of each sample: rewards and reference.
        parallel: All scorers are requested at the same time; otherwise each after the scores of the one
            before it have arrived.
        group_sources: Those of the scorers that score all samples of a prompt at once.
    """

    def __init__(
        self,
        collector: RolloutCollector,
        sources: Sequence[str],
        parallel: bool,
        group_sources: Container[str] = (),
    ) -> None:
        self._collector = collector
        self._sources = tuple(sources)
        self._parallel = parallel
        self._group_scoring = GroupScoring(collector, [name for name in sources if name in group_sources])

    async def request_due(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """Request the scores that are due; return the groups for which scores were requested.

        Args:
            groups: Groups of the next batch. Nothing is due while one of them is incomplete.
        """
        if any(group.generated_at is None for group in groups):
            return []
        requested = []
        for source in self._sources:
            unscored = [group for group in groups if group.list_unscored((source,))]
            due = [group for group in unscored if source not in group.requested_sources]
            for group in due:
                group.requested_sources.add(source)
            await self._publish(due, source)
            requested += due
            if unscored and not self._parallel:
                break
        return requested

    def is_waiting(self, group: RolloutGroup) -> bool:
        """Return True if a group is generated and no score that was requested for it is outstanding."""
        return group.generated_at is not None and not group.list_unscored(sorted(group.requested_sources))

    async def republish(self, group: RolloutGroup) -> None:
        """Publish again what the bus has lost: the requests whose scores have not arrived."""
        for source in self._sources:
            if source in group.requested_sources:
                await self._publish([group], source)

    async def _publish(self, groups: Iterable[RolloutGroup], source: str) -> None:
        """Publish the rollouts of these groups that lack a score from this scorer."""
        if source in self._group_scoring.sources:
            await asyncio.gather(*(self._group_scoring.request(group, (source,)) for group in groups))
            return
        # Published concurrently: storing a message is mostly latency.
        await asyncio.gather(
            *(
                self._collector.request_scores(_for_scorer(rollout, source), group.renewals)
                for group in groups
                for rollout in group.list_unscored((source,))
            )
        )


def _for_scorer(rollout: rollout_pb2.Rollout, source: str) -> rollout_pb2.Rollout:
    """Return a copy of the rollout that only this scorer takes."""
    request = rollout_pb2.Rollout()
    request.CopyFrom(rollout)
    request.purpose = requested_purpose(rollout.purpose, source)
    return request
