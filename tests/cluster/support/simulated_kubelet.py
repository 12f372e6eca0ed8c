"""Simulated kubelet: its pods run no process, and become Running and Ready, fail and end as scripted."""

import asyncio
import contextlib
import itertools
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from .behaviour import Behave, Behaviour, Exit, Json, Waiting, always
from .pod_status import PodState, now, restarted, status
from .rest import Rest
from .simulated_node import ADDRESS, PLENTY, beat, register, remove

_ANSWER_SECONDS = 120.0
_RELIST_SECONDS = 0.2
_CONFLICTS = 10
_PATCH = "strategic-merge-patch+json"

T = TypeVar("T")
Act = Callable[["_Pod"], Awaitable[None]]


def _addresses() -> Iterator[str]:
    """Yield unique pod addresses from 10.128.0.1 on."""
    for number in itertools.count(1):
        yield f"10.{128 + (number >> 16)}.{(number >> 8) & 255}.{number & 255}"


@dataclass
class _Pod:
    """One pod that is bound to a simulated node. `life` is the task of its current run."""

    manifest: Json
    state: PodState
    behaviour: Behaviour
    life: asyncio.Task[None] | None = None
    ending: bool = False
    bound: float = field(default_factory=time.monotonic)
    deadline: int | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def path(self) -> str:
        meta = self.manifest["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


class SimulatedKubelet:
    """A context manager. Between enter and exit the nodes exist, are Ready, and run the pods bound to them.

    `behave` may be replaced at any time; it is called before every later run of a pod, in the worker thread.
    `capacity` adds to the resources of each node, such as {"nvidia.com/gpu": "8"}."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext,
        token: str,
        *,
        behave: Behave | None = None,
        nodes: int = 1,
        capacity: Mapping[str, str] | None = None,
    ) -> None:
        self.behave: Behave = behave or always(Behaviour())
        self.nodes = [f"simulated-{number}" for number in range(nodes)]
        self._capacity = {**PLENTY, **(capacity or {})}
        self._rest = Rest(url, tls, token)
        self._pods: dict[str, _Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._ips = _addresses()
        self._bound = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="simulated-kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._start(), "the simulated nodes to be there")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the nodes, and raise the first error of a simulated pod's life, if any."""
        try:
            self._wait(self._stop(), "the simulated nodes to be gone")
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_ANSWER_SECONDS)
            self._loop.close()
        if self._failures and error is None:
            raise self._failures[0]

    def exit(self, namespace: str, name: str, how: Exit) -> None:
        """End the containers of a pod now, or as soon as it is bound here."""
        self._on(namespace, name, lambda pod: self._exit(pod, how))

    def set_waiting(self, namespace: str, name: str, why: Waiting) -> None:
        """Make a pod's containers wait, for example with ImagePullBackOff, until the pod is deleted."""
        self._on(namespace, name, lambda pod: self._report(pod, pod.state.is_waiting(why)))

    def set_ready(self, namespace: str, name: str, ready: bool) -> None:
        """Make a running pod ready or unready."""
        self._on(namespace, name, lambda pod: self._report(pod, pod.state.runs(ready=ready)))

    def names(self) -> list[str]:
        """Return `namespace/name` of every pod that is bound to these nodes, as last seen."""
        metas = [pod.manifest["metadata"] for pod in list(self._pods.values())]
        return sorted(f"{meta['namespace']}/{meta['name']}" for meta in metas)

    def _on(self, namespace: str, name: str, act: Act) -> None:
        self._wait(self._change(namespace, name, act), f"the status of pod {namespace}/{name}")

    def _wait(self, work: Coroutine[Any, Any, T], what: str) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_ANSWER_SECONDS)
        except TimeoutError as error:
            future.cancel()
            raise TimeoutError(f"waited {_ANSWER_SECONDS:g} s for {what}") from error

    async def _start(self) -> None:
        await self._rest.__aenter__()
        for node in self.nodes:
            await register(self._rest, node, self._capacity)
            self._spawn(beat(self._rest, node))
            self._spawn(self._follow(node))

    async def _stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for node in self.nodes:
            await remove(self._rest, node)
        await self._rest.__aexit__(None, None, None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task whose error is raised at the exit of the context."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._failures.append(error)

    async def _follow(self, node: str) -> None:
        """List and then watch the pods of a node; list again whenever the watch breaks."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                async for pod in self._events(node):
                    self._seen(pod)
            await asyncio.sleep(_RELIST_SECONDS)

    async def _events(self, node: str) -> AsyncIterator[Json]:
        path = f"/api/v1/pods?fieldSelector=spec.nodeName={node}"
        code, listed = await self._rest.call("GET", path)
        if code != 200:
            return
        present = {pod["metadata"]["uid"] for pod in listed["items"]}
        here = [uid for uid, pod in self._pods.items() if pod.manifest["spec"]["nodeName"] == node]
        for uid in here:
            if uid not in present:
                self._forget(uid)
        for pod in listed["items"]:
            yield pod
        async for event in self._rest.watch(path, listed["metadata"]["resourceVersion"]):
            if event["type"] == "DELETED":
                self._forget(event["object"]["metadata"]["uid"])
            elif event["type"] == "ERROR":
                return
            else:
                yield event["object"]

    def _seen(self, manifest: Json) -> None:
        meta = manifest["metadata"]
        pod = self._pods.get(meta["uid"])
        if pod is None:
            ip = manifest["status"].get("podIP") or next(self._ips)
            state = PodState(ip=ip, host_ip=ADDRESS, created=now())
            pod = self._pods[meta["uid"]] = _Pod(manifest, state, self.behave(manifest))
            # Wake the waiters for a bound pod; later waiters get a new event.
            self._bound.set()
            self._bound = asyncio.Event()
            if manifest["status"].get("phase") not in ("Succeeded", "Failed"):
                pod.life = self._spawn(self._live(pod))
        pod.manifest = manifest
        deadline = manifest["spec"].get("activeDeadlineSeconds")
        if deadline is not None and deadline != pod.deadline:
            pod.deadline = deadline
            self._spawn(self._expire(pod, deadline))
        if "deletionTimestamp" in meta and not pod.ending:
            pod.ending = True
            self._spawn(self._end(pod))

    def _forget(self, uid: str) -> None:
        if (pod := self._pods.pop(uid, None)) and pod.life:
            pod.life.cancel()

    async def _live(self, pod: _Pod) -> None:
        """Simulate every run of the containers, up to the last."""
        while True:
            plan = pod.behaviour
            if plan.stuck:
                await self._report(pod, pod.state.is_waiting(plan.stuck))
                return
            await asyncio.sleep(plan.start_after)
            if plan.ready_after > 0:
                await self._report(pod, pod.state.runs(ready=False))
                await asyncio.sleep(plan.ready_after)
            await self._report(pod, pod.state.runs(ready=True))
            if plan.exit is None:
                return
            await asyncio.sleep(plan.exit_after)
            if not await self._ended(pod, plan.exit):
                return
            await self._back_off(pod)

    async def _ended(self, pod: _Pod, how: Exit) -> bool:
        """Report the end of a run; return True when another run follows."""
        again = restarted(pod.manifest["spec"]["restartPolicy"], how) and not pod.ending
        await self._report(pod, pod.state.exits(how, final=not again))
        return again

    async def _back_off(self, pod: _Pod) -> None:
        """Wait in restart back-off like a kubelet, and get the behaviour of the next run."""
        await self._report(pod, pod.state.restarts_again())
        await asyncio.sleep(pod.behaviour.restart_after)
        pod.behaviour = self.behave({**pod.manifest, "status": status(pod.manifest, pod.state)})

    async def _exit(self, pod: _Pod, how: Exit) -> None:
        if pod.life:
            pod.life.cancel()
        if await self._ended(pod, how):
            pod.life = self._spawn(self._restart(pod))

    async def _restart(self, pod: _Pod) -> None:
        await self._back_off(pod)
        await self._live(pod)

    async def _expire(self, pod: _Pod, deadline: int) -> None:
        """End a pod that is active for longer than its activeDeadlineSeconds; the newest deadline counts."""
        await asyncio.sleep(max(0.0, pod.bound + deadline - time.monotonic()))
        if pod.state.final or pod.ending or pod.deadline != deadline:
            return
        if pod.life:
            pod.life.cancel()
        await asyncio.sleep(pod.behaviour.stop_after)
        await self._report(pod, pod.state.is_late(pod.behaviour.stopped))

    async def _end(self, pod: _Pod) -> None:
        """Finish a deleted pod like a kubelet: stop its containers, report their exit, delete the object."""
        if pod.life:
            pod.life.cancel()
        grace = pod.manifest["metadata"].get("deletionGracePeriodSeconds", 0)
        await asyncio.sleep(min(pod.behaviour.stop_after, grace))
        if pod.state.started and not pod.state.final:
            late = pod.behaviour.stop_after > grace
            await self._report(pod, pod.state.exits(Exit(137) if late else pod.behaviour.stopped, final=True))
        uid = pod.manifest["metadata"]["uid"]
        at_once = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        await self._ask("DELETE", pod.path, at_once, "json")

    async def _change(self, namespace: str, name: str, act: Act) -> None:
        while not (pods := self._named(namespace, name)):
            await self._bound.wait()
        await act(pods[-1])

    def _named(self, namespace: str, name: str) -> list[_Pod]:
        """Return the pods of this name, oldest first."""
        metas = [(pod, pod.manifest["metadata"]) for pod in self._pods.values()]
        return [pod for pod, meta in metas if (meta["namespace"], meta["name"]) == (namespace, name)]

    async def _report(self, pod: _Pod, state: PodState) -> None:
        """Patch the status of a pod, unless it is gone or another pod has its name."""
        async with pod.lock:
            pod.state = state
            meta = {"uid": pod.manifest["metadata"]["uid"]}
            body = {"metadata": meta, "status": status(pod.manifest, state)}
            await self._ask("PATCH", f"{pod.path}/status", body, _PATCH)

    async def _ask(self, method: str, path: str, body: Json, kind: str) -> None:
        """Send a request about a pod that may be gone. Raises RuntimeError when the API server refuses it."""
        for _ in range(_CONFLICTS):
            code, answer = await self._rest.call(method, path, body, kind)
            # Another pod has the name by now: a patch is invalid then, a deletion in conflict.
            if code in (409, 422) and "uid" in answer.get("message", "").lower():
                return
            # Any other conflict is another writer's patch at the same moment.
            if code != 409:
                break
        if code not in (200, 404):
            raise RuntimeError(f"{method} {path} was refused: {code} {answer.get('message')}")
