"""The logs of a job's pods: of those that are there, or followed through restarts until the job is over."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from kubealign.client.cluster_processes import begun, process_of
from kubealign.client.errors import KubealignError, NotPossible, Unavailable
from kubealign.client.kubernetes_api import Json, KubernetesApi
from kubealign.client.kubernetes_changes import PATIENCE_SECONDS, changes, list_all
from kubealign.client.kubernetes_failures import ObjectMissing
from kubealign.client.kubernetes_resources import PODS
from kubealign.client.records import JobRef, LogLine
from kubealign.labels import MAIN, UID_LABEL

Chosen = Callable[[Json], bool]

_WAITING_LINES = 1000
#: After the job's end: what is still being written by pods that are told to stop.
_LAST_WORDS_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_ENDED: LogLine | None = None


def of_job(uid: str) -> Mapping[str, str | int]:
    """Which pods belong to it."""
    return {"labelSelector": f"{UID_LABEL}={uid}"}


async def written(
    api: KubernetesApi, ref: JobRef, uid: str, chosen: Chosen, tail: int | None
) -> AsyncGenerator[LogLine]:
    """What is there, one pod after the other."""
    pods, _ = await list_all(api, PODS.collection(ref.namespace), of_job(uid))
    for pod in sorted(filter(chosen, pods), key=process_of):
        if begun(pod):
            with suppress(ObjectMissing):
                async with aclosing(_PodLog(api, pod, tail).lines(follow=False)) as lines:
                    async for line in lines:
                        yield line


async def followed(
    api: KubernetesApi, ref: JobRef, uid: str, chosen: Chosen, tail: int | None, over: asyncio.Event
) -> AsyncGenerator[LogLine]:
    """As it is written, also by pods that come later, until `over` is set and nothing more comes."""
    lines: asyncio.Queue[LogLine | None] = asyncio.Queue(_WAITING_LINES)
    work = asyncio.create_task(_Follower(api, ref, uid, chosen, tail, lines).run(over))
    try:
        while True:
            line = await lines.get()
            if line is None:
                break
            yield line
        await work
    finally:
        work.cancel()
        await asyncio.wait([work])


class _Follower:
    """One task for each pod, all of which write into one bounded queue: who reads slowly slows them down."""

    def __init__(
        self,
        api: KubernetesApi,
        ref: JobRef,
        uid: str,
        chosen: Chosen,
        tail: int | None,
        lines: asyncio.Queue[LogLine | None],
    ) -> None:
        self._api, self._ref, self._uid = api, ref, uid
        self._chosen, self._tail, self._lines = chosen, tail, lines
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._first = True
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, over: asyncio.Event) -> None:
        """The queue's last entry is None, also when this fails, but not when it is cancelled."""
        try:
            await self._until(over)
            pods, _ = await list_all(self._api, self._path, of_job(self._uid))
            for pod in pods:
                self._take(pod)
            if self._readers:
                done, _ = await asyncio.wait(self._readers.values(), timeout=_LAST_WORDS_SECONDS)
                for reader in done:
                    reader.result()
        finally:
            for reader in self._readers.values():
                reader.cancel()
            await asyncio.gather(*self._readers.values(), return_exceptions=True)
            self._failed.cancel()
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                # Else nobody reads any more, and nobody would make room for it.
                await self._lines.put(_ENDED)

    @property
    def _path(self) -> str:
        return PODS.collection(self._ref.namespace)

    async def _until(self, over: asyncio.Event) -> None:
        pods = asyncio.create_task(self._pods())
        ended = asyncio.create_task(over.wait())
        try:
            await asyncio.wait((pods, ended, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if pods.done():
                pods.result()
            if self._failed.done():
                self._failed.result()
        finally:
            for task in (pods, ended):
                task.cancel()
            await asyncio.gather(pods, ended, return_exceptions=True)

    async def _pods(self) -> None:
        there, _ = await list_all(self._api, self._path, of_job(self._uid))
        for pod in there:
            self._take(pod)
        # `tail` is about what was written before somebody looked: of later pods every line is new.
        self._first = False
        known = {str(pod["metadata"]["uid"]): pod for pod in there}
        async with aclosing(changes(self._api, self._path, of_job(self._uid), known=known)) as found:
            async for change in found:
                if not change.gone:
                    self._take(change.item)

    def _take(self, pod: Json) -> None:
        uid = str(pod["metadata"]["uid"])
        if uid in self._readers or not self._chosen(pod) or not begun(pod):
            return
        log = _PodLog(self._api, pod, self._tail if self._first else None)
        self._readers[uid] = asyncio.create_task(self._read(log))

    async def _read(self, log: "_PodLog") -> None:
        try:
            async with aclosing(log.lines(follow=True)) as lines:
                async for line in lines:
                    await self._lines.put(line)
        except ObjectMissing:
            # Gone before it was asked for: what takes its place is read.
            return
        except KubealignError as error:
            # Whoever follows must not wait for lines that nobody may read.
            if not self._failed.done():
                self._failed.set_exception(error)
            raise


class _PodLog:
    """Of one pod's main container, which starts once: what follows a crash is another pod."""

    def __init__(self, api: KubernetesApi, pod: Json, tail: int | None) -> None:
        self._api, self._tail = api, tail
        metadata = pod["metadata"]
        self._process = process_of(pod)
        self._pod = PODS.named(metadata["namespace"], metadata["name"])
        self._uid = str(metadata["uid"])
        #: The time of the last line, as the node wrote it: where to go on after a connection broke.
        self._last = ""

    async def lines(self, *, follow: bool) -> AsyncGenerator[LogLine]:
        """Raises ObjectMissing where the pod is gone before its log was asked for."""
        loop = asyncio.get_running_loop()
        heard, pause = loop.time(), _FIRST_PAUSE
        while True:
            try:
                known = self._last
                async with aclosing(self._api.stream_lines(f"{self._pod}/log", self._query(follow))) as lines:
                    async for stamped in lines:
                        heard, pause = loop.time(), _FIRST_PAUSE
                        when, _, text = stamped.partition(" ")
                        if not when[:4].isdecimal():
                            # The node's own word, such as that the log is gone.
                            yield LogLine(self._process, stamped)
                        elif not known or _later(when, known):
                            # sinceTime counts whole seconds: the first lines may be known.
                            self._last = when
                            yield LogLine(self._process, text)
                if not follow or await self._ended():
                    return
            except Unavailable:
                if not follow or loop.time() - heard > PATIENCE_SECONDS:
                    raise
            # The container goes on, so it was the connection that ended.
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _query(self, follow: bool) -> dict[str, str | int]:
        query: dict[str, str | int] = {"container": MAIN, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._last:
            query["sinceTime"] = f"{self._last[:19]}Z"
        elif self._tail is not None:
            query["tailLines"] = self._tail
        return query

    async def _ended(self) -> bool:
        try:
            pod = await self._api.get(self._pod)
        except ObjectMissing:
            return True
        state = _main_state(pod)
        return str(pod["metadata"].get("uid")) != self._uid or "running" not in state


def _later(when: str, last: str) -> bool:
    """Of two times in RFC 3339, both UTC, whose fractions may differ in length."""
    return _comparable(when) > _comparable(last)


def _comparable(when: str) -> tuple[str, str]:
    whole, _, fraction = when.removesuffix("Z").partition(".")
    return whole, fraction.ljust(9, "0")


def _main_state(pod: Json) -> Mapping[str, Any]:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status.get("name") == MAIN:
            state: Mapping[str, Any] = status.get("state") or {}
            return state
    return {}


def chosen(process: str | None, role: str | None, role_of: Callable[[Json], str]) -> Chosen:
    """Which pods' logs are wanted."""

    def wanted(pod: Json) -> bool:
        name = process_of(pod)
        return bool(name) and process in (None, name) and role in (None, role_of(pod))

    return wanted


def nothing_of(ref: JobRef, process: str | None, role: str | None, there: list[str]) -> NotPossible:
    """There is no such process."""
    asked = f"process {process}" if process else f"process with the role {role}"
    return NotPossible(f"job {ref} has no {asked}: it has {', '.join(sorted(there)) or 'none yet'}")
