"""Reconciles Redis users with the jobs: one for each job with credentials, none for finished jobs."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kubealign.errors import Unavailable
from kubealign.kube.api import KubernetesApi
from kubealign.kube.errors import ApiStatusError
from kubealign.kube.resources import SECRETS
from kubealign_operator import names
from kubealign_operator.controller import credentials
from kubealign_operator.controller.kube.ownership import JobKey
from kubealign_operator.controller.metrics import OperatorMetrics
from kubealign_operator.controller.platform_redis.replies import RedisUser
from kubealign_operator.controller.platform_redis.server import (
    PlatformRedis,
    RedisUnavailable,
    password_digest,
)
from kubealign_operator.controller.state.cache import JobStore
from kubealign_operator.controller.state.job_views import credentials_generation

log = logging.getLogger(__name__)

_INTERVAL_SECONDS = 10.0
_FINAL = ("Succeeded", "Failed")


@dataclass(frozen=True)
class _IssuedPassword:
    """Password for Redis in credentials that have just been created."""

    key: JobKey
    password: str
    generation: int


class RedisUserSync:
    """Reconciles Redis users every few seconds; the user of a new job is created as soon as its credentials
    are, and replaced as soon as they are renewed.

    `namespaces` are those that this operator reconciles (empty: all): users of other namespaces are left
    alone.
    """

    def __init__(
        self,
        redis: PlatformRedis,
        api: KubernetesApi,
        jobs: JobStore,
        metrics: OperatorMetrics,
        namespaces: Sequence[str],
    ) -> None:
        self._redis = redis
        self._api = api
        self._jobs = jobs
        self._metrics = metrics
        self._namespaces = frozenset(namespaces)
        self._issued: dict[str, _IssuedPassword] = {}
        #: uid -> generation of the credentials whose password the user has; absent: 1, or unknown.
        self._generations: dict[str, int] = {}
        #: Jobs that may have keys; None: not read from Redis yet.
        self._jobs_with_keys: set[JobKey] | None = None
        #: uids of jobs whose users were removed for good.
        self._suspended: set[str] = set()
        self._wake = asyncio.Event()
        self._is_unavailable = False

    def on_credentials_issued(self, key: JobKey, uid: str, password: str, generation: int) -> None:
        """Record that this generation of the job's credentials has just been created."""
        self._issued[uid] = _IssuedPassword(key, password, generation)
        self._wake.set()

    async def suspend_user(self, uid: str) -> None:
        """Remove the user of a job, and do not restore it while this process lives.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        self._suspended.add(uid)
        await self._redis.remove_user(self._redis.user_of(uid))

    async def run(self) -> None:
        """Reconcile until cancelled. The jobs must have been listed before."""
        while True:
            self._wake.clear()
            try:
                await self.reconcile()
            except RedisUnavailable as error:
                if not self._is_unavailable:
                    log.warning("Redis is unavailable; jobs continue without it: %s", error)
                self._is_unavailable = True
            else:
                if self._is_unavailable:
                    log.info("Redis is available again")
                self._is_unavailable = False
            self._metrics.set_redis_up(not self._is_unavailable)
            await self._pause()

    async def reconcile(self) -> None:
        """Reconcile once, from Redis' current state: a restart of Redis makes no difference.

        Raises:
            RedisUnavailable: Redis does not answer.
        """
        for uid, issued in list(self._issued.items()):
            await self._apply(uid, issued)
            if self._issued.get(uid) is issued:
                self._issued.pop(uid)
        present = await self._redis.list_users()
        active = {
            self._redis.user_of(job.uid): (key, job.uid)
            for key, job in self._jobs.items()
            if job.phase not in _FINAL and not job.is_dispatched
        }
        self._suspended &= {uid for _, uid in active.values()}
        uids = {uid for _, uid in active.values()}
        self._generations = {uid: number for uid, number in self._generations.items() if uid in uids}
        for user, (key, uid) in active.items():
            if uid not in self._suspended and not self._is_current(key, uid, present.get(user)):
                await self._restore_user(key, uid, present.get(user))
        await self._remove_stale_users({name: user for name, user in present.items() if name not in active})
        await self._remove_orphaned_keys()

    async def _pause(self) -> None:
        # While Redis is unavailable, newly issued credentials do not shorten the pause.
        wait = asyncio.Event().wait() if self._is_unavailable else self._wake.wait()
        try:
            async with asyncio.timeout(_INTERVAL_SECONDS):
                await wait
        except TimeoutError:
            return

    async def _apply(self, uid: str, issued: _IssuedPassword) -> None:
        """Give the user of a job the password of credentials that have just been created."""
        if issued.generation == 1:
            # Keys of an earlier job of the same name are not this job's progress.
            await self._redis.remove_keys(self._redis.prefix_of(issued.key))
        elif uid not in self._suspended:
            # A connection that the old password opened would outlive it.
            await self._redis.remove_user(self._redis.user_of(uid))
        if uid not in self._suspended:
            await self._create_user(issued.key, uid, issued.password, issued.generation)

    def _is_current(self, key: JobKey, uid: str, user: RedisUser | None) -> bool:
        """Return True when the user has the current rules and the password of the current credentials."""
        job = self._jobs.get(key)
        # The users of an earlier version may send more commands.
        if job is None or user is None or not user.has_current_rules:
            return False
        return self._generations.get(uid, 1) == credentials_generation(job.status)

    async def _restore_user(self, key: JobKey, uid: str, user: RedisUser | None) -> None:
        """Restore the user of a job whose credentials are older than this process, or than a Redis that lost
        its users, or not yet created.
        """
        job = self._jobs.get(key)
        if job is None or not job.phase:
            return
        generation = credentials_generation(job.status)
        path = SECRETS.object_path(key.namespace, names.credentials(key.name, generation))
        try:
            secret = await self._api.get(path)
        except (ApiStatusError, Unavailable) as error:
            log.debug("%s", error)
            if user is not None and isinstance(error, ApiStatusError) and error.is_not_found:
                # The password of the earlier credentials is revoked already.
                await self._redis.remove_user(self._redis.user_of(uid))
            return
        password = credentials.redis_password(secret, uid)
        if password is None:
            return
        if user is not None and user.password_digest != password_digest(password):
            await self._redis.remove_user(self._redis.user_of(uid))
        await self._create_user(key, uid, password, generation)

    async def _create_user(self, key: JobKey, uid: str, password: str, generation: int) -> None:
        prefix = self._redis.prefix_of(key)
        await self._redis.create_user(self._redis.user_of(uid), password, prefix)
        self._generations[uid] = generation

    async def _remove_stale_users(self, stale: dict[str, RedisUser]) -> None:
        """Delete the users of finished jobs."""
        for name, user in stale.items():
            key = self._redis.job_of_user(name, user)
            if key is not None and self._is_ours(key):
                await self._redis.remove_user(name)

    async def _remove_orphaned_keys(self) -> None:
        """Delete the keys of deleted jobs without a successor of the same name.

        Their users are gone, so nobody writes.
        """
        if self._jobs_with_keys is None:
            self._jobs_with_keys = {key for key in await self._redis.jobs_with_keys() if self._is_ours(key)}
        present = {key for key, _ in self._jobs.items()}
        for key in self._jobs_with_keys - present:
            await self._redis.remove_keys(self._redis.prefix_of(key))
        self._jobs_with_keys = present

    def _is_ours(self, key: JobKey) -> bool:
        return not self._namespaces or key.namespace in self._namespaces
