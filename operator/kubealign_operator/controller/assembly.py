"""Wires the components that run while a replica is the leader."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from typing import Any

from kubernetes.aio.client.api_client import ApiClient

from kubealign.roles import Process
from kubealign_operator.controller.acting import Actor
from kubealign_operator.controller.api import Api
from kubealign_operator.controller.cache import Jobs, Pods
from kubealign_operator.controller.config import OperatorConfig
from kubealign_operator.controller.events import Recorder
from kubealign_operator.controller.existence import Existence
from kubealign_operator.controller.metrics import Metrics
from kubealign_operator.controller.progress import NoProgress, ProgressReader
from kubealign_operator.controller.queue import WorkQueue
from kubealign_operator.controller.reconcile import Reconciler
from kubealign_operator.controller.redis_server import RedisServer
from kubealign_operator.controller.redis_users import RedisUsers
from kubealign_operator.controller.reflector import Reflector, Scope
from kubealign_operator.controller.refusals import Refusals
from kubealign_operator.controller.resources import JOBS, PODS, Key
from kubealign_operator.render.names import OWNED_SELECTOR
from kubealign_operator.render.observed import Observed
from kubealign_operator.render.render import render
from kubealign_operator.render.rendered import Rendered

log = logging.getLogger(__name__)

_SYNC_SECONDS = 120.0
# The pods of a job change in bursts: a burst causes one reconcile and one status patch.
_GATHER_SECONDS = 0.2


class NeverSynced(Exception):
    """The initial lists did not arrive in time."""


class Assembly:
    """Components of a leading replica. `guard` is called before each write to the API server.

    Every coroutine that it returns runs until it is cancelled.
    """

    def __init__(
        self,
        config: OperatorConfig,
        client: ApiClient,
        metrics: Metrics,
        instance: str,
        guard: Callable[[], None],
    ) -> None:
        self._config = config
        self._api = Api(client, metrics, config.request_seconds, guard)
        self._metrics = metrics
        self._queue: WorkQueue[Key] = WorkQueue()
        self._jobs = Jobs(self._queue.add)
        self._pods = Pods(lambda job: self._queue.add_after(job, _GATHER_SECONDS))
        self._existence = Existence(self._api, config.resync_seconds)
        self._refusals = Refusals()
        self._recorder = Recorder(self._api, metrics, instance)
        self._redis = RedisServer(config.redis) if config.redis is not None else None
        self._users: RedisUsers | None = None
        self._progress: ProgressReader | NoProgress = NoProgress()
        if self._redis is not None:
            self._users = RedisUsers(self._redis, self._api, self._jobs, metrics, config.namespaces)
            self._progress = ProgressReader(self._redis, self._jobs, self._queue.add, config.progress_seconds)
        self._reflectors = [
            Reflector(self._api, scope, store, metrics, config.resync_seconds)
            for namespace in (config.namespaces or (None,))
            for scope, store in (
                (Scope(JOBS, namespace), self._jobs),
                (Scope(PODS, namespace, OWNED_SELECTOR), self._pods),
            )
        ]
        self._reconciler = self._make_reconciler()
        metrics.watch(self._jobs.phases, lambda: len(self._queue))

    def watching(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Return the coroutines that fill the caches."""
        return (reflector.run() for reflector in self._reflectors)

    async def synced(self) -> None:
        """Wait until every cache has received its first list.

        Raises:
            SyncTimeout: The lists did not arrive in time.
        """
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                for reflector in self._reflectors:
                    await reflector.synced.wait()
        except TimeoutError as error:
            raise NeverSynced(f"waited {_SYNC_SECONDS:g} s for the first lists of jobs and pods") from error

    def working(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yield the coroutines that reconcile; start them once the caches are synced."""
        for _ in range(self._config.workers):
            yield self._reconciler.work()
        yield self._recorder.run()
        yield self._look_at_all()
        yield self._progress.run()
        if self._users is not None:
            yield self._users.run()

    async def aclose(self) -> None:
        if self._redis is not None:
            await self._redis.aclose()

    def _make_reconciler(self) -> Reconciler:
        redis, platform = self._config.redis, self._config.platform.platform()
        actor = Actor(
            self._api,
            self._jobs,
            self._pods,
            self._existence,
            redis_ca=redis.ca_file.read_bytes() if redis is not None and redis.ca_file is not None else None,
            issued=self._users.issued if self._users is not None else lambda key, uid, password: None,
            announce=self._recorder.record,
        )

        def planner(processes: Sequence[Process], observed: Observed, now: datetime) -> Rendered:
            return render(processes, observed, now, platform)

        return Reconciler(
            self._jobs,
            self._pods,
            self._existence,
            self._refusals,
            self._progress,
            actor,
            planner,
            self._queue,
            self._metrics,
        )

    async def _look_at_all(self) -> None:
        """Enqueue every job periodically, independent of the watches, and forget deleted jobs."""
        while True:
            await asyncio.sleep(self._config.resync_seconds)
            present = {job.uid for _, job in self._jobs.items()}
            self._existence.keep_only(present)
            self._refusals.keep_only(present)
            for key in [key for key, _ in self._jobs.items()]:
                self._queue.add(key)
