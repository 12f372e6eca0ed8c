"""Runner of one job on this machine, from its first process to its last."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Protocol

from kubealign.access.redis_names import job_prefix
from kubealign.local.errors import RunFailed, RunRefused
from kubealign.local.processes.devices import assign_devices, visible_devices
from kubealign.local.processes.fork_server import ForkServer
from kubealign.local.processes.liveness import DEFAULT_POLICY, LivenessPolicy
from kubealign.local.processes.ports import PortAllocator
from kubealign.local.processes.supervisor import READY_TIMEOUT_SECONDS, ProcessView, Supervisor
from kubealign.local.run_dir.control_socket import control_server
from kubealign.local.run_dir.disk import disk_full_message, is_full, wait_until_full, wait_until_room
from kubealign.local.run_dir.events import EventLog, RunEventType
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.status import (
    FinalProgress,
    Phase,
    RunStatus,
    ended_status,
    read_status,
    started_status,
)
from kubealign.local.runner.device_requests import device_requests
from kubealign.local.runner.role_units import RoleUnits
from kubealign.local.runner.scaling import plan_scaling
from kubealign.local.runner.settings import Addresses, ProcessEnvironment
from kubealign.local.runner.signals import Interruption
from kubealign.local.servers.base import ManagedServer
from kubealign.local.servers.nats import LocalNatsServer
from kubealign.local.servers.redis import LocalRedisServer
from kubealign.process_settings import Role, TlsFiles
from kubealign.read_model import ReadModelClient, ReadModelUnavailable
from kubealign.role_specs import REDIS, SERVERS
from kubealign.roles import Process, roles
from kubealign.spec.job import AlignmentJob

DRIVER = Role.DRIVER.value
NATS = Role.NATS.value
_CERTIFICATES_BEYOND_DEADLINE = timedelta(days=1)
_CERTIFICATES_WITHOUT_DEADLINE = timedelta(days=365)
_INFRASTRUCTURE_GRACE_SECONDS = 10.0
_FINAL_READ_SECONDS = 5.0


class Display(Protocol):
    """Progress display of a run."""

    def begin(self, job: AlignmentJob, folder: Path) -> None: ...

    def show_message(self, text: str) -> None: ...

    async def follow(
        self, reader: ReadModelClient, processes: Callable[[], list[ProcessView]], over: asyncio.Event
    ) -> None:
        """Show progress until `over` is set, then the final state, and return."""

    def end(self, status: RunStatus) -> None: ...


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Args:
        results: Result folders of the jobs that this one depends on.
        parent_run: Run directory from whose checkpoint the job starts; None: from its own weights.
        processes: Processes to run; None runs those of the job.
        ports: Allocator of the servers' ports; None creates one.
        ready_seconds: Readiness timeout of a process.
        liveness: When a process counts as hung.
    """

    results: Mapping[str, Path] = field(default_factory=dict)
    parent_run: Path | None = None
    processes: Sequence[Process] | None = None
    ports: PortAllocator | None = None
    ready_seconds: float = READY_TIMEOUT_SECONDS
    liveness: LivenessPolicy = DEFAULT_POLICY


class JobRunner:
    """One run of one job; used once."""

    def __init__(
        self,
        job: AlignmentJob,
        folder: RunDirectory,
        fork_server: ForkServer,
        display: Display,
        options: RunOptions,
    ) -> None:
        self._job = job
        self._folder = folder
        self._fork_server = fork_server
        self._display = display
        self._results = dict(options.results)
        self._parent_run = options.parent_run
        self._processes = list(roles(job) if options.processes is None else options.processes)
        self._lifecycle = job.spec.lifecycle
        self._events = EventLog(folder.events)
        self._supervisor = Supervisor(
            self._lifecycle.max_restarts,
            self._report_restart,
            options.ready_seconds,
            options.liveness,
            is_storage_full=lambda: is_full(folder.root),
            progress=folder.newest_checkpoint_step,
        )
        ports = options.ports or PortAllocator()
        self._nats = ManagedServer(NATS, self._nats_server, ports, fork_server, folder)
        self._redis = ManagedServer(REDIS, self._redis_server, ports, fork_server, folder)
        self._units = RoleUnits(
            folder, fork_server, self._process_environment, Addresses(ports), self._devices_of
        )
        self._devices: tuple[str, ...] = ()
        self._passwords = {name: token_urlsafe(32) for name in (NATS, REDIS, "admin")}
        self._tls: dict[Role, TlsFiles] = {}
        self._shared_memory = Path()
        self._finished = asyncio.Event()
        self._display_started = False
        self._is_shutting_down = False
        self._scale_lock = asyncio.Lock()

    async def run(self, interruption: Interruption) -> RunStatus:
        """Run the job until it succeeds, fails or is stopped; none of its processes runs afterwards.

        A failed job is a status with its cause, not an exception. Raises OSError where the run directory
        cannot be written, and RunFailed for a process that cannot be killed.
        """
        self._devices = await asyncio.to_thread(visible_devices)
        before = read_status(self._folder.status)
        status = started_status(before)
        self._prepare_run_directory()
        status.write(self._folder.status)
        self._events.append("Started" if before is None else "Resumed", f"by process {status.runner}")
        self._display.begin(self._job, self._folder.root)
        phase, message = Phase.FAILED, "the runner itself failed"
        last = FinalProgress()
        self._start_units()
        showing = asyncio.ensure_future(self._show_progress())
        insisting = asyncio.ensure_future(self._kill_on_second_signal(interruption))
        try:
            async with control_server(self._folder.root, self._handle_request):
                phase, message = await self._wait_for_outcome(interruption, status.active_seconds), ""
        except RunFailed as failure:
            message = str(failure)
            if interruption.force_requested.is_set():
                # Killed processes always fail.
                phase = Phase.STOPPED
        finally:
            try:
                last = await self._shut_down(interruption, showing)
            finally:
                insisting.cancel()
                self._folder.release_shared_memory()
                if phase is Phase.STOPPED:
                    message = _stopped_message(
                        last.step or status.step, interruption.force_requested.is_set()
                    )
                status = ended_status(status, phase, message, last)
                # Shown before it is written: on a full disk the write fails.
                self._display.end(status)
                self._record_end_event(status)
                status.write(self._folder.status)
        return status

    def _devices_of(self, process: str) -> tuple[str, ...]:
        requests = device_requests(self._job, self._processes)
        return assign_devices(self._devices, requests).get(process, ())

    def processes(self) -> list[ProcessView]:
        return self._supervisor.processes()

    async def scale(self, group: str, replicas: int) -> None:
        """Start or stop workers of an elastic group until it has this many replicas. Raises RunRefused."""
        async with self._scale_lock:
            if self._is_shutting_down:
                raise RunRefused("the run is shutting down: it cannot be scaled")
            added, removed = plan_scaling(self._job, self._processes, group, replicas)
            self._processes += added
            for unit in self._units.build(added, self._processes):
                self._supervisor.add(unit)
            for process in removed:
                self._processes.remove(process)
            grace = self._lifecycle.grace_period_seconds
            removed_units = dict.fromkeys(process.unit for process in removed)
            await asyncio.gather(*(self._supervisor.remove(name, grace) for name in removed_units))
            for name in dict.fromkeys(process.unit for process in (*added, *removed)):
                self._report("Scaled", f"{name} was {'removed' if name in removed_units else 'added'}")

    async def _watch_disk(self) -> None:
        """Report each time that the disk is full and that there is room again; forever."""
        folder = self._folder.root
        while True:
            await wait_until_full(folder)
            self._report("StorageFull", disk_full_message(folder), RunEventType.WARNING)
            await wait_until_room(folder)
            self._report("StorageFree", f"there is room again on the disk of {folder}")
            # It stores nothing more in a file of which a write has failed.
            self._supervisor.restart(NATS, "was restarted because its disk had been full")

    def _report_restart(self, text: str) -> None:
        self._report("Restarted", text, RunEventType.WARNING)

    def _report(self, reason: str, text: str, type_: RunEventType = RunEventType.NORMAL) -> None:
        self._display.show_message(text)
        self._events.append(reason, text, type_)

    def _record_end_event(self, status: RunStatus) -> None:
        failed = status.phase is Phase.FAILED
        message = status.message or f"after {status.step} steps"
        self._events.append(status.phase, message, RunEventType.WARNING if failed else RunEventType.NORMAL)

    def _prepare_run_directory(self) -> None:
        from kubealign.access.certificate_authority import CertificateAuthority, write_tls

        self._folder.create()
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
        authority = CertificateAuthority.create(self._job.name, lifetime)
        for role in {*(process.role for process in self._processes), Role.RUNNER}:
            self._tls[role] = write_tls(self._folder.tls, authority, role)
        self._shared_memory = self._folder.claim_shared_memory()

    def _start_units(self) -> None:
        self._supervisor.add(self._nats.unit())
        self._supervisor.add(self._redis.unit())
        for unit in self._units.build(self._processes, self._processes):
            self._supervisor.add(unit)

    async def _wait_for_outcome(self, interruption: Interruption, active: float) -> Phase:
        deadline = self._lifecycle.active_deadline_seconds
        result = asyncio.ensure_future(self._supervisor.wait_for_result())
        asked = asyncio.ensure_future(interruption.stop_requested.wait())
        watching = asyncio.ensure_future(self._watch_disk())
        try:
            await asyncio.wait(
                {result, asked},
                timeout=None if deadline is None else max(0.0, deadline - active),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not result.done():
                if asked.done():
                    self._report(
                        "Stopping",
                        "stopping: the driver finishes and writes a checkpoint; Ctrl-C again stops at once",
                    )
                await self._stop_driver(result, interruption)
            if result.done() or self._supervisor.is_decided:
                await result
                return Phase.SUCCEEDED
            if asked.done():
                return Phase.STOPPED
            raise RunFailed(f"the job has run for {deadline:g} s (lifecycle.activeDeadlineSeconds)")
        finally:
            result.cancel()
            asked.cancel()
            watching.cancel()

    async def _kill_on_second_signal(self, interruption: Interruption) -> None:
        """Kill all processes on the second signal, also those being started while the fork server still
        imports.
        """
        await interruption.force_requested.wait()
        self._fork_server.kill()

    async def _stop_driver(self, job_result: "asyncio.Future[None]", interruption: Interruption) -> None:
        """Stop the driver first: it needs the other processes to write its checkpoint."""
        grace = self._lifecycle.grace_period_seconds
        if self._supervisor.has_unit(DRIVER):
            stop = asyncio.ensure_future(self._supervisor.stop(DRIVER, grace, interruption.force_requested))
            await asyncio.wait({stop, job_result}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                stop.result()
            stop.cancel()

    async def _shut_down(self, interruption: Interruption, showing: "asyncio.Future[None]") -> FinalProgress:
        """Stop the roles, read the final progress, then stop the servers."""
        self._is_shutting_down = True
        names = self._supervisor.unit_names()
        force = interruption.force_requested
        roles_ended = False
        try:
            role_names = [name for name in names if name not in SERVERS]
            await self._supervisor.terminate(role_names, self._lifecycle.grace_period_seconds, force)
            roles_ended = True
        finally:
            self._finished.set()
            await asyncio.wait(
                {showing}, timeout=_FINAL_READ_SECONDS if roles_ended and self._display_started else 0
            )
            showing.cancel()
            last = await self._read_final_progress() if roles_ended else FinalProgress()
            await self._supervisor.terminate(SERVERS, _INFRASTRUCTURE_GRACE_SECONDS, force)
        return last

    async def _read_final_progress(self) -> FinalProgress:
        """Read the final progress from Redis; empty where Redis does not respond."""
        if not any(view.name == REDIS and view.pid is not None for view in self.processes()):
            return FinalProgress()
        try:
            async with (
                asyncio.timeout(_FINAL_READ_SECONDS),
                ReadModelClient(self._redis.server.access) as reader,
            ):
                return FinalProgress(await reader.progress(), await reader.newest_metrics())
        except (ReadModelUnavailable, TimeoutError):
            return FinalProgress()

    async def _show_progress(self) -> None:
        await self._supervisor.wait_ready(REDIS)
        self._display_started = True
        try:
            async with ReadModelClient(self._redis.server.access) as reader:
                await self._display.follow(reader, self.processes, self._finished)
        except Exception as error:  # noqa: BLE001 - reported: a display failure does not stop the job
            self._display.show_message(f"progress cannot be shown: {type(error).__name__}: {error}")

    async def _handle_request(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"scale": dict(groups)}:
                for group, replicas in groups.items():
                    await self.scale(group, replicas)
            case {"status": _}:
                pass
            case _:
                raise RunRefused(f"unknown request {', '.join(request)}: use scale or status")
        return {"processes": [asdict(view) for view in self.processes()]}

    def _nats_server(self, port: int) -> LocalNatsServer:
        name = f"{self._job.name}-{port}"
        return LocalNatsServer(self._folder.nats, port, name, self._passwords[NATS], self._tls[Role.RUNNER])

    def _redis_server(self, port: int) -> LocalRedisServer:
        prefix = job_prefix(self._job.metadata.namespace, self._job.name)
        return LocalRedisServer(
            self._folder.redis, port, prefix, self._passwords[REDIS], self._passwords["admin"]
        )

    def _process_environment(self) -> ProcessEnvironment:
        return ProcessEnvironment(
            job=self._job,
            folder=self._folder,
            shared_memory=self._shared_memory,
            results=self._results,
            parent_run=self._parent_run,
            tls=self._tls,
            nats=self._nats.server.access,
            redis=self._redis.server.access,
        )


def _stopped_message(step: int, at_once: bool) -> str:
    if at_once:
        return f"ended at step {step}; the same command resumes from the last checkpoint"
    return f"stopped at step {step}; the same command resumes from there"
