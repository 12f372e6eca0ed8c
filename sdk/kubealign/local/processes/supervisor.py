"""Supervisor of a job's processes, similar to a kubelet: start order, readiness, restarts, termination.

Independent of the work that the processes do. A unit is a set of processes that start and restart
together: the ranks of a group, or a single elastic worker.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from kubealign.backoff import RESET_AFTER_SECONDS, Backoff, restart_backoff
from kubealign.local.errors import RunFailed
from kubealign.local.processes.exit_status import (
    crash_message,
    describe_exit,
    permanent_failure_message,
    read_termination_message,
)
from kubealign.local.processes.fork_server import ChildProcess
from kubealign.local.processes.liveness import DEFAULT_POLICY, LivenessPolicy, Probe, wait_until_hung
from kubealign.local.processes.log_tail import read_log_tail
from kubealign.local.processes.terminate import kill_all, terminate_all
from kubealign.process_settings import ExitCode
from kubealign.storage_errors import is_storage_error

#: Readiness timeout: a large model loads well within it.
READY_TIMEOUT_SECONDS = 300.0
#: Time for a hung process to write its stacks.
_STACKS_SECONDS = 1.0


class UnitState(StrEnum):
    """State of a unit. READY: it serves; a one-shot unit goes to FINISHED instead."""

    WAITING = "Waiting"
    STARTING = "Starting"
    READY = "Ready"
    RESTARTING = "Restarting"
    FINISHED = "Finished"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class ManagedProcess:
    """One process of a unit."""

    name: str
    start: Callable[[], Awaitable[ChildProcess]]
    #: Returns when the process serves; None: it is ready as soon as it runs.
    wait_ready: Callable[[], Awaitable[None]] | None = None
    #: Description of the readiness condition for messages.
    readiness_condition: str = ""
    #: Liveness probe, called periodically from the start of the process; None: none.
    probe: Probe | None = None
    #: Signal upon which the process writes its stacks to its log; None: it cannot.
    stacks_signal: signal.Signals | None = None
    #: File for the cause of a permanent failure.
    termination: Path | None = None


@dataclass(frozen=True)
class ManagedUnit:
    """Processes that start and restart together."""

    name: str
    group: str
    members: tuple[ManagedProcess, ...]
    #: Groups of which every unit must have been ready (a one-shot: finished) before this one starts.
    after: tuple[str, ...] = ()
    one_shot: bool = False
    #: The job has succeeded when this unit exits with code 0.
    ends_job: bool = False
    #: Called before each start.
    prepare: Callable[[], None] = lambda: None

    def member(self, name: str) -> ManagedProcess:
        return next(member for member in self.members if member.name == name)


@dataclass(frozen=True)
class ProcessView:
    """A process as the display shows it."""

    name: str
    state: UnitState
    restarts: int
    pid: int | None
    #: Start time in seconds since the epoch; None: it does not run.
    started_at: float | None = None
    #: Pending dependencies, or the reason of the restart.
    message: str = ""


@dataclass
class _RunningUnit:
    unit: ManagedUnit
    state: UnitState = UnitState.WAITING
    restarts: int = 0
    is_stopping: bool = False
    #: Reason of the restart.
    restart_reason: str = ""
    #: Name of a process that hung and was killed -> why it counted as hung.
    hung: dict[str, str] = field(default_factory=dict)
    #: Name of a process that was killed so that it starts again -> why.
    requested_restarts: dict[str, str] = field(default_factory=dict)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    children: dict[str, ChildProcess] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    @property
    def running_children(self) -> list[ChildProcess]:
        return [child for child in self.children.values() if child.is_running]


class Supervisor:
    """Supervisor of all units of a job.

    `max_restarts` applies to all units together, between two increases of `progress`, and counts no process
    that ends while storage is full.
    `on_restart` is called with a message for every restart.
    """

    def __init__(
        self,
        max_restarts: int,
        on_restart: Callable[[str], None],
        ready_seconds: float = READY_TIMEOUT_SECONDS,
        liveness: LivenessPolicy = DEFAULT_POLICY,
        is_storage_full: Callable[[], bool] = lambda: False,
        progress: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_restarts = max_restarts
        self._on_restart = on_restart
        self._ready_seconds = ready_seconds
        self._liveness = liveness
        self._is_storage_full = is_storage_full
        self._progress = progress
        self._progress_at_restart = 0
        self._clock = clock
        self._restarts = 0
        self._units: dict[str, _RunningUnit] = {}
        self._start_tasks: set[asyncio.Task[None]] = set()
        self._result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, unit: ManagedUnit) -> None:
        """Add a unit; it starts once the groups that it depends on are ready."""
        tended = _RunningUnit(unit)
        self._units[unit.name] = tended
        tended.task = asyncio.get_running_loop().create_task(self._run_unit(tended), name=unit.name)
        tended.task.add_done_callback(self._on_unit_done)

    def has_unit(self, name: str) -> bool:
        return name in self._units

    async def wait_ready(self, group: str) -> None:
        """Wait until every unit of the group has been ready once."""
        units = [tended for tended in self._units.values() if tended.unit.group == group]
        if not units:
            raise RunFailed(f"there is no process group {group!r} to wait for")
        for tended in units:
            await tended.ready.wait()

    async def wait_for_result(self) -> None:
        """Wait until the job has succeeded. Raises RunFailed when it cannot continue."""
        await asyncio.shield(self._result)

    @property
    def is_decided(self) -> bool:
        """True if `wait_for_result` would return at once."""
        return self._result.done()

    async def stop(self, name: str, grace: float, force: asyncio.Event) -> None:
        """Stop a unit in an orderly way and do not restart it. The other units keep running."""
        tended = self._units[name]
        tended.is_stopping = True
        assert tended.task is not None
        if tended.running_children:
            late = await terminate_all(tended.running_children, grace, force)
            if late and not force.is_set():
                self._on_restart(f"{', '.join(late)} did not end within {grace:g} s and was killed")
        else:
            tended.task.cancel()
        await asyncio.wait({tended.task})
        tended.state = UnitState.STOPPED

    def restart(self, name: str, cause: str) -> None:
        """Kill the processes of a unit, which then starts again. That does not count as a restart.

        Args:
            cause: How the process ended, as `was restarted because ...`.
        """
        tended = self._units[name]
        for child in tended.running_children:
            tended.requested_restarts[child.name] = cause
            child.kill()

    async def remove(self, name: str, grace: float) -> None:
        """Stop a unit and forget it."""
        await self.stop(name, grace, asyncio.Event())
        del self._units[name]

    async def terminate(self, names: Sequence[str], grace: float, force: asyncio.Event) -> None:
        """Terminate these units at the same time and restart none of them."""
        units = [self._units[name] for name in names if name in self._units]
        for tended in units:
            tended.is_stopping = True
            if tended.task is not None:
                tended.task.cancel()
        await asyncio.gather(*(t.task for t in units if t.task is not None), return_exceptions=True)
        # Wait for starts in progress, whose processes appear a moment later.
        await asyncio.gather(*self._start_tasks, return_exceptions=True)
        children = [child for tended in units for child in tended.running_children]
        late = await terminate_all(children, grace, force)
        if late and not force.is_set():
            self._on_restart(f"{', '.join(late)} did not end within {grace:g} s and was killed")
        for tended in units:
            tended.state = UnitState.STOPPED

    def unit_names(self) -> list[str]:
        return list(self._units)

    def processes(self) -> list[ProcessView]:
        return [
            self._view(tended, member) for tended in self._units.values() for member in tended.unit.members
        ]

    def _view(self, tended: _RunningUnit, member: ManagedProcess) -> ProcessView:
        child = next((child for child in tended.running_children if child.name == member.name), None)
        view = ProcessView(member.name, tended.state, tended.restarts, None, message=self._message(tended))
        return view if child is None else replace(view, pid=child.pid, started_at=child.started_at)

    def _message(self, tended: _RunningUnit) -> str:
        if tended.state is UnitState.WAITING:
            unready_groups = {other.unit.group for other in self._units.values() if not other.ready.is_set()}
            unready = [group for group in tended.unit.after if group in unready_groups]
            return f"waits for {', '.join(unready)}" if unready else ""
        return tended.restart_reason if tended.state is UnitState.RESTARTING else ""

    async def _run_unit(self, tended: _RunningUnit) -> None:
        unit = tended.unit
        for group in unit.after:
            await self.wait_ready(group)
        backoff = restart_backoff()
        while True:
            tended.state = UnitState.STARTING
            if not await self._start_unit_when_possible(tended, backoff):
                continue
            exited, healthy_seconds = await self._wait_for_exit(tended)
            code = await exited.wait()
            if code == ExitCode.DONE and unit.one_shot:
                tended.state = UnitState.FINISHED
                tended.ready.set()
                return
            if code == ExitCode.DONE and unit.ends_job:
                tended.state = UnitState.FINISHED
                if not self._result.done():
                    self._result.set_result(None)
                return
            ended = (
                tended.requested_restarts.get(exited.name)
                or tended.hung.get(exited.name)
                or describe_exit(code)
            )
            await kill_all(tended.running_children)
            is_counted = not (
                code in (ExitCode.REPLACED, ExitCode.STORAGE)
                or exited.name in tended.requested_restarts
                or self._is_storage_full()
            )
            if code == ExitCode.STORAGE:
                cause = read_termination_message(tended.unit.member(exited.name).termination)
                ended = f"waits for storage: {cause}"
            else:
                await self._raise_if_permanent(tended)
            if tended.is_stopping:
                return
            if is_counted:
                self._refill_budget()
                if self._restarts >= self._max_restarts:
                    raise RunFailed(crash_message(exited, ended, self._max_restarts))
                self._restarts += 1
            tended.restarts += 1
            tended.state = UnitState.RESTARTING
            if healthy_seconds >= RESET_AFTER_SECONDS:
                backoff.reset()
            delay = backoff.next_delay()
            tended.restart_reason = f"{exited.name} {ended}; it is started again in {delay:g} s"
            budget = f"restart {self._restarts} of {self._max_restarts}" if is_counted else "not counted"
            self._on_restart(
                f"{exited.name} {ended}; starting {unit.name} again in {delay:g} s "
                f"({budget}; log: {exited.log})"
            )
            await asyncio.sleep(delay)

    def _refill_budget(self) -> None:
        """Start to count anew if the job has made progress since the last restart that counted."""
        if (progress := self._progress()) > self._progress_at_restart:
            self._progress_at_restart = progress
            self._restarts = 0

    async def _start_unit_when_possible(self, tended: _RunningUnit, backoff: Backoff) -> bool:
        """Start a unit. Return False after a delay when storage is full: its files cannot be written yet."""
        try:
            await self._start_unit(tended)
        except OSError as error:
            if not is_storage_error(error):
                raise
            await kill_all(tended.running_children)
            delay = backoff.next_delay()
            tended.state = UnitState.RESTARTING
            tended.restart_reason = f"waits for storage: {error.strerror}; it is started again in {delay:g} s"
            await asyncio.sleep(delay)
            return False
        return True

    async def _start_unit(self, tended: _RunningUnit) -> None:
        tended.unit.prepare()
        tended.children.clear()
        tended.hung.clear()
        tended.requested_restarts.clear()
        for member in tended.unit.members:
            starting = asyncio.get_running_loop().create_task(self._start_member(tended, member))
            self._start_tasks.add(starting)
            starting.add_done_callback(self._start_tasks.discard)
            # A start cannot be undone: if this task is cancelled, the process must still be recorded.
            await asyncio.shield(starting)

    async def _start_member(self, tended: _RunningUnit, member: ManagedProcess) -> None:
        if member.termination is not None:
            member.termination.unlink(missing_ok=True)
        tended.children[member.name] = await member.start()

    async def _wait_for_exit(self, tended: _RunningUnit) -> tuple[ChildProcess, float]:
        """Wait for the first exit in the unit.

        Returns the process that ended and the seconds for which the unit had been healthy.
        """
        exits = {asyncio.ensure_future(child.wait()): child for child in tended.children.values()}
        waiting: set[asyncio.Future[int] | asyncio.Future[None]] = {*exits}
        readiness: asyncio.Future[None] | None = None
        if not tended.unit.one_shot:
            readiness = asyncio.ensure_future(self._wait_unit_ready(tended))
            waiting.add(readiness)
        healthy_since: float | None = None
        probing = [
            asyncio.ensure_future(self._kill_when_hung(tended, member))
            for member in tended.unit.members
            if member.probe is not None
        ]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if readiness is not None and done == {readiness}:
                readiness.result()
                healthy_since = self._clock()
                done, _ = await asyncio.wait({*exits}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in (*waiting, *probing):
                future.cancel()
            if readiness is not None and readiness.done() and not readiness.cancelled():
                readiness.exception()
        first = next(child for future, child in exits.items() if future in done)
        return first, 0.0 if healthy_since is None else self._clock() - healthy_since

    async def _kill_when_hung(self, tended: _RunningUnit, member: ManagedProcess) -> None:
        """Probe a process, and kill it when it hangs; its exit then causes the restart."""
        assert member.probe is not None
        await wait_until_hung(member.probe, self._liveness)
        tended.hung[member.name] = f"gave no sign of life in {self._liveness.silence} and was killed"
        child = tended.children[member.name]
        if member.stacks_signal is not None:
            # A process that is stopped does not react.
            child.send_signal(member.stacks_signal)
            await asyncio.sleep(_STACKS_SECONDS)
        child.kill()

    async def _wait_unit_ready(self, tended: _RunningUnit) -> None:
        for member in tended.unit.members:
            if member.wait_ready is None:
                continue
            try:
                async with asyncio.timeout(self._ready_seconds):
                    await member.wait_ready()
            except TimeoutError:
                child = tended.children[member.name]
                raise RunFailed(
                    f"{member.name} was not ready within {self._ready_seconds:g} s: "
                    f"waited for {member.readiness_condition}. "
                    f"Its log, {child.log}, ends:\n{read_log_tail(child.log, child.log_start)}"
                ) from None
        tended.state = UnitState.READY
        tended.ready.set()

    async def _raise_if_permanent(self, tended: _RunningUnit) -> None:
        """Raise RunFailed when an ended process of the unit reports a permanent failure."""
        for member in tended.unit.members:
            child = tended.children[member.name]
            code = await child.wait()
            if code == ExitCode.PERMANENT or read_termination_message(member.termination):
                raise RunFailed(permanent_failure_message(child, member.termination))

    def _on_unit_done(self, task: asyncio.Task[None]) -> None:
        """Fail the job when a unit cannot be kept running."""
        if not task.cancelled() and task.exception() is not None and not self._result.done():
            self._result.set_exception(task.exception())  # type: ignore[arg-type]
            # Mark the exception as retrieved, in case nobody waits for the result any more.
            self._result.exception()
