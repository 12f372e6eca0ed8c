"""Supervisor of a job's processes, similar to a kubelet: start order, readiness, restarts, termination.

Independent of the work that the processes do. A unit is a set of processes that start and restart
together:
the ranks of a group, or a single elastic worker.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from kubealign.local.backoff import Backoff
from kubealign.local.ending import end, kill
from kubealign.local.exits import crash_message, how_it_ended, last_words, permanent_message
from kubealign.local.failure import RunFailed
from kubealign.local.fork_server import Child
from kubealign.local.log_tail import log_tail
from kubealign.process import Exit

#: Readiness timeout: a large model loads well within it.
READY_SECONDS = 300.0


class State(StrEnum):
    """State of a unit. READY: it serves; a one-shot unit goes to FINISHED instead."""

    WAITING = "Waiting"
    STARTING = "Starting"
    READY = "Ready"
    RESTARTING = "Restarting"
    FINISHED = "Finished"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class Member:
    """One process of a unit."""

    name: str
    start: Callable[[], Awaitable[Child]]
    #: Returns when the process serves; None: it is ready as soon as it runs.
    ready: Callable[[], Awaitable[None]] | None = None
    #: Description of the readiness condition for messages.
    waits_for: str = ""
    #: File for the cause of a permanent failure.
    termination: Path | None = None


@dataclass(frozen=True)
class Unit:
    """Processes that start and restart together."""

    name: str
    group: str
    members: tuple[Member, ...]
    #: Groups of which every unit must have been ready (a one-shot: finished) before this one starts.
    after: tuple[str, ...] = ()
    one_shot: bool = False
    #: The job has succeeded when this unit exits with code 0.
    ends_job: bool = False
    #: Called before each start.
    prepare: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class ProcessView:
    """A process as the display shows it."""

    name: str
    state: State
    restarts: int
    pid: int | None
    #: Start time in seconds since the epoch; None: it does not run.
    started_at: float | None = None
    #: Pending dependencies, or the reason of the restart.
    message: str = ""


@dataclass
class _Tended:
    unit: Unit
    state: State = State.WAITING
    restarts: int = 0
    stopping: bool = False
    #: Reason of the restart.
    cause: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    children: dict[str, Child] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def living(self) -> list[Child]:
        return [child for child in self.children.values() if child.running]


class Supervisor:
    """Supervisor of all units of a job.

    `max_restarts` applies to all units together. `on_restart` is called with a message for every restart.
    """

    def __init__(
        self,
        max_restarts: int,
        announce: Callable[[str], None],
        ready_seconds: float = READY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_restarts = max_restarts
        self._announce = announce
        self._ready_seconds = ready_seconds
        self._clock = clock
        self._restarts = 0
        self._tended: dict[str, _Tended] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._verdict: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, unit: Unit) -> None:
        """Add a unit; it starts once the groups that it depends on are ready."""
        tended = _Tended(unit)
        self._tended[unit.name] = tended
        tended.task = asyncio.get_running_loop().create_task(self._tend(tended), name=unit.name)
        tended.task.add_done_callback(self._judge)

    def has(self, name: str) -> bool:
        return name in self._tended

    async def ready(self, group: str) -> None:
        """Wait until every unit of the group has been ready once."""
        units = [tended for tended in self._tended.values() if tended.unit.group == group]
        if not units:
            raise RunFailed(f"there is no process group {group!r} to wait for")
        for tended in units:
            await tended.ready.wait()

    async def verdict(self) -> None:
        """Wait until the job has succeeded. Raises RunFailed when it cannot continue."""
        await asyncio.shield(self._verdict)

    @property
    def decided(self) -> bool:
        """True if `wait_for_result` would return at once."""
        return self._verdict.done()

    async def stop(self, name: str, grace: float, hurry: asyncio.Event) -> None:
        """Stop a unit in an orderly way and do not restart it. The other units keep running."""
        tended = self._tended[name]
        tended.stopping = True
        assert tended.task is not None
        if tended.living:
            late = await end(tended.living, grace, hurry)
            if late and not hurry.is_set():
                self._announce(f"{', '.join(late)} did not end within {grace:g} s and was killed")
        else:
            tended.task.cancel()
        await asyncio.wait({tended.task})
        tended.state = State.STOPPED

    async def remove(self, name: str, grace: float) -> None:
        """Stop a unit and forget it."""
        await self.stop(name, grace, asyncio.Event())
        del self._tended[name]

    async def end(self, names: Sequence[str], grace: float, hurry: asyncio.Event) -> None:
        """Terminate these units at the same time and restart none of them."""
        units = [self._tended[name] for name in names if name in self._tended]
        for tended in units:
            tended.stopping = True
            if tended.task is not None:
                tended.task.cancel()
        await asyncio.gather(*(t.task for t in units if t.task is not None), return_exceptions=True)
        # Wait for starts in progress, whose processes appear a moment later.
        await asyncio.gather(*self._starting, return_exceptions=True)
        children = [child for tended in units for child in tended.living]
        late = await end(children, grace, hurry)
        if late and not hurry.is_set():
            self._announce(f"{', '.join(late)} did not end within {grace:g} s and was killed")
        for tended in units:
            tended.state = State.STOPPED

    def names(self) -> list[str]:
        return list(self._tended)

    def processes(self) -> list[ProcessView]:
        return [
            self._view(tended, member) for tended in self._tended.values() for member in tended.unit.members
        ]

    def _view(self, tended: _Tended, member: Member) -> ProcessView:
        child = next((child for child in tended.living if child.name == member.name), None)
        view = ProcessView(member.name, tended.state, tended.restarts, None, message=self._message(tended))
        return view if child is None else replace(view, pid=child.pid, started_at=child.started_at)

    def _message(self, tended: _Tended) -> str:
        if tended.state is State.WAITING:
            unready_groups = {other.unit.group for other in self._tended.values() if not other.ready.is_set()}
            unready = [group for group in tended.unit.after if group in unready_groups]
            return f"waits for {', '.join(unready)}" if unready else ""
        return tended.cause if tended.state is State.RESTARTING else ""

    async def _tend(self, tended: _Tended) -> None:
        unit = tended.unit
        for group in unit.after:
            await self.ready(group)
        backoff = Backoff()
        while True:
            tended.state = State.STARTING
            await self._start(tended)
            exited, healthy_seconds = await self._watch(tended)
            code = await exited.wait()
            if code == Exit.DONE and unit.one_shot:
                tended.state = State.FINISHED
                tended.ready.set()
                return
            if code == Exit.DONE and unit.ends_job:
                tended.state = State.FINISHED
                if not self._verdict.done():
                    self._verdict.set_result(None)
                return
            await kill(tended.living)
            await self._refuse_permanent(tended)
            if tended.stopping:
                return
            if self._restarts >= self._max_restarts:
                raise RunFailed(crash_message(exited, code, self._max_restarts))
            self._restarts += 1
            tended.restarts += 1
            tended.state = State.RESTARTING
            delay = backoff.after(healthy_seconds)
            tended.cause = f"{exited.name} {how_it_ended(code)}; it is started again in {delay:g} s"
            self._announce(
                f"{exited.name} {how_it_ended(code)}; starting {unit.name} again in {delay:g} s "
                f"(restart {self._restarts} of {self._max_restarts}; log: {exited.log})"
            )
            await asyncio.sleep(delay)

    async def _start(self, tended: _Tended) -> None:
        tended.unit.prepare()
        tended.children.clear()
        for member in tended.unit.members:
            starting = asyncio.get_running_loop().create_task(self._launch(tended, member))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)
            # A start cannot be undone: if this task is cancelled, the process must still be recorded.
            await asyncio.shield(starting)

    async def _launch(self, tended: _Tended, member: Member) -> None:
        if member.termination is not None:
            member.termination.unlink(missing_ok=True)
        tended.children[member.name] = await member.start()

    async def _watch(self, tended: _Tended) -> tuple[Child, float]:
        """Wait for the first exit in the unit.

        Returns the process that ended and the seconds for which the unit had been healthy.
        """
        exits = {asyncio.ensure_future(child.wait()): child for child in tended.children.values()}
        waiting: set[asyncio.Future[int] | asyncio.Future[None]] = {*exits}
        readiness: asyncio.Future[None] | None = None
        if not tended.unit.one_shot:
            readiness = asyncio.ensure_future(self._become_ready(tended))
            waiting.add(readiness)
        healthy_since: float | None = None
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if readiness is not None and done == {readiness}:
                readiness.result()
                healthy_since = self._clock()
                done, _ = await asyncio.wait({*exits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in waiting:
                future.cancel()
            if readiness is not None and readiness.done() and not readiness.cancelled():
                readiness.exception()
        first = next(child for future, child in exits.items() if future in done)
        return first, 0.0 if healthy_since is None else self._clock() - healthy_since

    async def _become_ready(self, tended: _Tended) -> None:
        for member in tended.unit.members:
            if member.ready is None:
                continue
            try:
                async with asyncio.timeout(self._ready_seconds):
                    await member.ready()
            except TimeoutError:
                child = tended.children[member.name]
                raise RunFailed(
                    f"{member.name} was not ready within {self._ready_seconds:g} s: "
                    f"waited for {member.waits_for}. "
                    f"Its log, {child.log}, ends:\n{log_tail(child.log, child.log_start)}"
                ) from None
        tended.state = State.READY
        tended.ready.set()

    async def _refuse_permanent(self, tended: _Tended) -> None:
        """Raise RunFailed when an ended process of the unit reports a permanent failure."""
        for member in tended.unit.members:
            child = tended.children[member.name]
            code = await child.wait()
            if code == Exit.PERMANENT or last_words(member.termination):
                raise RunFailed(permanent_message(child, member.termination))

    def _judge(self, task: asyncio.Task[None]) -> None:
        """Fail the job when a unit cannot be kept running."""
        if not task.cancelled() and task.exception() is not None and not self._verdict.done():
            self._verdict.set_exception(task.exception())  # type: ignore[arg-type]
            # Mark the exception as retrieved, in case nobody waits for the result any more.
            self._verdict.exception()
