"""Runner of one job on this machine, from its first process to its last."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Protocol

from kubealign.local.control import control_server
from kubealign.local.disk import filled_up, no_room_message
from kubealign.local.event_log import EventLog, EventType
from kubealign.local.failure import RunFailed, RunRefused
from kubealign.local.fork_server import ForkServer
from kubealign.local.interruption import Interruption
from kubealign.local.nats_server import NatsServer
from kubealign.local.ports import Ports
from kubealign.local.redis_server import RedisServer
from kubealign.local.role_units import NATS, REDIS, RoleUnits
from kubealign.local.run_folder import RunFolder
from kubealign.local.run_status import Phase, RunStatus, Seen, begun, ended, read_status
from kubealign.local.scaling import scaled
from kubealign.local.servers import KeptServer
from kubealign.local.settings import Addresses, Surroundings
from kubealign.local.supervisor import READY_SECONDS, ProcessView, Supervisor
from kubealign.process import Role, TlsFiles
from kubealign.read_model import ReadModel, ReadModelAway
from kubealign.roles import Process, roles
from kubealign.spec.job import AlignmentJob

DRIVER = "driver"
_CERTIFICATES_BEYOND_DEADLINE = timedelta(days=1)
_CERTIFICATES_WITHOUT_DEADLINE = timedelta(days=365)
_INFRASTRUCTURE_GRACE_SECONDS = 10.0
_LAST_LOOK_SECONDS = 5.0


class Display(Protocol):
    """Progress display of a run."""

    def begin(self, job: AlignmentJob, folder: Path) -> None: ...

    def say(self, text: str) -> None: ...

    async def follow(
        self, reader: ReadModel, processes: Callable[[], list[ProcessView]], over: asyncio.Event
    ) -> None:
        """Show progress until `over` is set, then the final state, and return."""

    def end(self, status: RunStatus) -> None: ...


class LocalRun:
    """One run of one job; used once. `results`: result folders of the jobs that this one depends on."""

    def __init__(
        self,
        job: AlignmentJob,
        folder: RunFolder,
        fork_server: ForkServer,
        display: Display,
        *,
        results: Mapping[str, Path] | None = None,
        processes: Sequence[Process] | None = None,
        ports: Ports | None = None,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self._job = job
        self._folder = folder
        self._fork_server = fork_server
        self._display = display
        self._results = dict(results or {})
        self._processes = list(roles(job) if processes is None else processes)
        self._lifecycle = job.spec.lifecycle
        self._events = EventLog(folder.events)
        self._supervisor = Supervisor(self._lifecycle.max_restarts, self._announce, ready_seconds)
        ports = ports or Ports()
        self._nats = KeptServer(NATS, self._nats_server, ports, fork_server, folder)
        self._redis = KeptServer(REDIS, self._redis_server, ports, fork_server, folder)
        self._units = RoleUnits(folder, fork_server, self._surroundings, Addresses(ports))
        self._passwords = {name: token_urlsafe(32) for name in (NATS, REDIS, "admin")}
        self._tls: dict[Role, TlsFiles] = {}
        self._shared_memory = Path()
        self._over = asyncio.Event()
        self._shown = False
        self._ending = False
        self._scaling = asyncio.Lock()

    async def run(self, interruption: Interruption) -> RunStatus:
        """Run the job until it succeeds, fails or is stopped; none of its processes runs afterwards.

        A failed job is a status with its cause, not an exception. Raises OSError where the run directory
        cannot be written, and RunFailed for a process that cannot be killed.
        """
        before = read_status(self._folder.status)
        status = begun(before)
        self._make_folder()
        status.write(self._folder.status)
        self._events.tell("Started" if before is None else "Resumed", f"by process {status.runner}")
        self._display.begin(self._job, self._folder.root)
        phase, message = Phase.FAILED, "the runner itself failed"
        last = Seen()
        self._start()
        showing = asyncio.ensure_future(self._show())
        insisting = asyncio.ensure_future(self._end_at_once(interruption))
        try:
            async with control_server(self._folder.root, self._request):
                phase, message = await self._until_over(interruption, status.active_seconds), ""
        except RunFailed as failure:
            message = str(failure)
            if interruption.insisted.is_set():
                # Killed processes always fail.
                phase = Phase.STOPPED
        finally:
            try:
                last = await self._end_everything(interruption, showing)
            finally:
                insisting.cancel()
                self._folder.release_memory()
                if phase is Phase.STOPPED:
                    message = _stopped(last.step or status.step, interruption.insisted.is_set())
                status = ended(status, phase, message, last)
                # Shown before it is written: on a full disk the write fails.
                self._display.end(status)
                self._tell_end(status)
                status.write(self._folder.status)
        return status

    def processes(self) -> list[ProcessView]:
        return self._supervisor.processes()

    async def scale(self, group: str, replicas: int) -> None:
        """Start or stop workers of an elastic group until it has this many replicas. Raises RunRefused."""
        async with self._scaling:
            if self._ending:
                raise RunRefused("the run is shutting down: it cannot be scaled")
            added, removed = scaled(self._job, self._processes, group, replicas)
            self._processes += added
            for unit in self._units.of(added, self._processes):
                self._supervisor.add(unit)
            for process in removed:
                self._processes.remove(process)
            grace = self._lifecycle.grace_period_seconds
            removed_units = dict.fromkeys(process.unit for process in removed)
            await asyncio.gather(*(self._supervisor.remove(name, grace) for name in removed_units))
            for name in dict.fromkeys(process.unit for process in (*added, *removed)):
                self._say("Scaled", f"{name} was {'removed' if name in removed_units else 'added'}")

    def _announce(self, text: str) -> None:
        self._say("Restarted", text, EventType.WARNING)

    def _say(self, reason: str, text: str, type_: EventType = EventType.NORMAL) -> None:
        self._display.say(text)
        self._events.tell(reason, text, type_)

    def _tell_end(self, status: RunStatus) -> None:
        failed = status.phase is Phase.FAILED
        message = status.message or f"after {status.step} steps"
        self._events.tell(status.phase, message, EventType.WARNING if failed else EventType.NORMAL)

    def _make_folder(self) -> None:
        from kubealign.security.authority import Authority, write_tls

        self._folder.make()
        self._folder.write_job(self._job.model_dump_json(by_alias=True, indent=2))
        # The bus is a cache: its content is recreated from the last checkpoint.
        shutil.rmtree(self._folder.nats, ignore_errors=True)
        self._folder.nats.mkdir(mode=0o700)
        deadline = self._lifecycle.active_deadline_seconds
        lifetime = (
            _CERTIFICATES_WITHOUT_DEADLINE
            if deadline is None
            else timedelta(seconds=deadline) + _CERTIFICATES_BEYOND_DEADLINE
        )
        authority = Authority.create(self._job.name, lifetime)
        for role in {*(process.role for process in self._processes), Role.RUNNER}:
            self._tls[role] = write_tls(self._folder.tls, authority, role)
        self._shared_memory = self._folder.claim_memory()

    def _start(self) -> None:
        self._supervisor.add(self._nats.unit())
        self._supervisor.add(self._redis.unit())
        for unit in self._units.of(self._processes, self._processes):
            self._supervisor.add(unit)

    async def _until_over(self, interruption: Interruption, active: float) -> Phase:
        deadline = self._lifecycle.active_deadline_seconds
        result = asyncio.ensure_future(self._supervisor.verdict())
        asked = asyncio.ensure_future(interruption.asked.wait())
        full = asyncio.ensure_future(filled_up(self._folder.root))
        try:
            await asyncio.wait(
                {result, asked, full},
                timeout=None if deadline is None else max(0.0, deadline - active),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if full.done() and not result.done():
                raise RunFailed(no_room_message(self._folder.root))
            if not result.done():
                if asked.done():
                    self._say(
                        "Stopping",
                        "stopping: the driver finishes and writes a checkpoint; Ctrl-C again stops at once",
                    )
                await self._drain(result, interruption)
            if result.done() or self._supervisor.decided:
                await result
                return Phase.SUCCEEDED
            if asked.done():
                return Phase.STOPPED
            raise RunFailed(f"the job has run for {deadline:g} s (lifecycle.activeDeadlineSeconds)")
        finally:
            result.cancel()
            asked.cancel()
            full.cancel()

    async def _end_at_once(self, interruption: Interruption) -> None:
        """Kill all processes on the second signal, also those being started while the fork server still
        imports.
        """
        await interruption.insisted.wait()
        self._fork_server.kill()

    async def _drain(self, job_result: "asyncio.Future[None]", interruption: Interruption) -> None:
        """Stop the driver first: it needs the other processes to write its checkpoint."""
        grace = self._lifecycle.grace_period_seconds
        if self._supervisor.has(DRIVER):
            stop = asyncio.ensure_future(self._supervisor.stop(DRIVER, grace, interruption.insisted))
            await asyncio.wait({stop, job_result}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                stop.result()
            stop.cancel()

    async def _end_everything(self, interruption: Interruption, showing: "asyncio.Future[None]") -> Seen:
        """Stop the roles, read the final progress, then stop the servers."""
        self._ending = True
        names = self._supervisor.names()
        force = interruption.insisted
        roles_ended = False
        try:
            role_names = [name for name in names if name not in (NATS, REDIS)]
            await self._supervisor.end(role_names, self._lifecycle.grace_period_seconds, force)
            roles_ended = True
        finally:
            self._over.set()
            await asyncio.wait({showing}, timeout=_LAST_LOOK_SECONDS if roles_ended and self._shown else 0)
            showing.cancel()
            last = await self._last_look() if roles_ended else Seen()
            await self._supervisor.end([NATS, REDIS], _INFRASTRUCTURE_GRACE_SECONDS, force)
        return last

    async def _last_look(self) -> Seen:
        """Read the final progress from Redis; empty where Redis does not respond."""
        if not any(view.name == REDIS and view.pid is not None for view in self.processes()):
            return Seen()
        try:
            async with asyncio.timeout(_LAST_LOOK_SECONDS), ReadModel(self._redis.server.access) as reader:
                return Seen(await reader.progress(), await reader.newest_metrics())
        except (ReadModelAway, TimeoutError):
            return Seen()

    async def _show(self) -> None:
        await self._supervisor.ready(REDIS)
        self._shown = True
        try:
            async with ReadModel(self._redis.server.access) as reader:
                await self._display.follow(reader, self.processes, self._over)
        except Exception as error:  # noqa: BLE001 - reported: a display failure does not stop the job
            self._display.say(f"progress cannot be shown: {type(error).__name__}: {error}")

    async def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"scale": dict(groups)}:
                for group, replicas in groups.items():
                    await self.scale(group, replicas)
            case {"status": _}:
                pass
            case _:
                raise RunRefused(f"unknown request {', '.join(request)}: use scale or status")
        return {"processes": [asdict(view) for view in self.processes()]}

    def _nats_server(self, port: int) -> NatsServer:
        name = f"{self._job.name}-{port}"
        return NatsServer(self._folder.nats, port, name, self._passwords[NATS], self._tls[Role.RUNNER])

    def _redis_server(self, port: int) -> RedisServer:
        prefix = f"kubealign:{self._job.metadata.namespace}:{self._job.name}:"
        return RedisServer(self._folder.redis, port, prefix, self._passwords[REDIS], self._passwords["admin"])

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            job=self._job,
            folder=self._folder,
            shared_memory=self._shared_memory,
            results=self._results,
            tls=self._tls,
            nats=self._nats.server.access,
            redis=self._redis.server.access,
        )


def _stopped(step: int, at_once: bool) -> str:
    if at_once:
        return f"ended at step {step}; the same command resumes from the last checkpoint"
    return f"stopped at step {step}; the same command resumes from there"
