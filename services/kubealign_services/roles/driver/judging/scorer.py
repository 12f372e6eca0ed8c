"""Scores of the policy's judgements, requested as soon as a rollout arrives."""

import asyncio
import logging
from collections.abc import Callable

from kubealign.v1 import rollout_pb2, scoring_pb2
from kubealign_services.roles.driver.judging.policy_model import PolicyModel
from kubealign_services.scoring.worker import Scorer

log = logging.getLogger(__name__)


class ArrivalScorer:
    """Scores each rollout in a task of its own.

    Waits for no other rollout, and no rollout worker waits for a score: a judgement is answered after the
    work items that were published before it.

    Args:
        deliver: Receives each score.
    """

    def __init__(
        self, scorer: Scorer, model: PolicyModel, deliver: Callable[[scoring_pb2.Score], None]
    ) -> None:
        self._scorer = scorer
        self._model = model
        self._deliver = deliver
        self._tasks: set[asyncio.Task[None]] = set()

    def request(self, rollout: rollout_pb2.Rollout, version: int) -> None:
        """Begin to score a rollout.

        Args:
            version: Version of the weights that was demanded for it.
        """
        self._model.version = max(self._model.version, version)
        task = asyncio.create_task(self._score(rollout))
        self._tasks.add(task)
        task.add_done_callback(self._end)

    async def close(self) -> None:
        """Cancel the scoring in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _score(self, rollout: rollout_pb2.Rollout) -> None:
        for score in await self._scorer([rollout]):
            self._deliver(score)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # The group is requested again when it is overdue.
            log.error("a rollout was not judged", exc_info=task.exception())
