"""Context of a role process: settings, job, bus, metrics, heartbeat and the compute thread."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ParamSpec, TypeVar

from kubealign.process_settings import ProcessSettings, Role
from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared_files import read_longest_context, read_routing_record_bytes
from kubealign_services.messaging.contract import Bus
from kubealign_services.messaging.jetstream.bus import JetStreamBus
from kubealign_services.runtime.process.bus_load import bus_bounds
from kubealign_services.runtime.process.work_watchdog import WorkWatchdog
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.telemetry.heartbeat import Heartbeat
from kubealign_services.telemetry.instrumented_bus import InstrumentedBus
from kubealign_services.telemetry.metrics import ProcessMetrics
from kubealign_services.telemetry.rates import BusyShare
from kubealign_services.telemetry.read_model_writer import ReadModelWriter

P = ParamSpec("P")
R = TypeVar("R")

# Part of the grace period for calls in progress when a server closes.
_SERVER_GRACE_SECONDS = 5.0
# Beyond `trainer.stepTimeoutSeconds`: ranks that wait for one another give up by themselves before, and say
# which rank is missing.
_DEADLINE_MARGIN_SECONDS = 30.0


@dataclass
class ProcessContext:
    """Everything that a role's main receives from the process.

    `stop` is set when the process receives SIGTERM or SIGINT.
    """

    settings: ProcessSettings
    job: AlignmentJob
    logger: logging.Logger
    stop: asyncio.Event
    metrics: ProcessMetrics
    read_model: ReadModelWriter
    heartbeat: Heartbeat
    #: True while the role works: it serves, or follows the rank that serves.
    ready: bool = False
    #: Further readiness conditions, such as a healthy engine server.
    conditions: list[Callable[[], bool]] = field(default_factory=list)
    #: Description of a thread that cannot be ended; the process exits without it.
    abandoned_thread: str = ""
    #: Busy share of the compute thread.
    busy_share: BusyShare = field(default_factory=BusyShare)
    #: Name of the function or command that the compute thread runs; empty when idle.
    current_computation: str = ""
    #: Ends the process when a computation with a deadline exceeds it.
    watchdog: WorkWatchdog = field(default_factory=WorkWatchdog)
    _executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
    )

    #: Contexts of other parts of the same process.
    _sub_contexts: list["ProcessContext"] = field(default_factory=list)

    def sub_context(self, name: str, role: Role) -> "ProcessContext":
        """Return the context of another part of this process, with its own name and compute thread.

        The part has no server address, and its heartbeat fields are sent with this part's heartbeats.
        """
        overrides = {"name": name, "role": role, "world_size": 1, "rank": 0}
        overrides |= {"listen": None, "advertise": None}
        part = replace(
            self,
            settings=self.settings.model_copy(update={**overrides, "rendezvous": None}),
            heartbeat=self.heartbeat.sub_heartbeat(),
            current_computation="",
            _executor=ThreadPoolExecutor(max_workers=1, thread_name_prefix=name),
            _sub_contexts=[],
        )
        self._sub_contexts.append(part)
        return part

    @property
    def running_computation(self) -> str:
        """Computation in a thread of the process that prevents a plain exit; empty when none runs."""
        own = self.current_computation or self.abandoned_thread
        return own or next(
            (other.running_computation for other in self._sub_contexts if other.running_computation), ""
        )

    @property
    def is_healthy(self) -> bool:
        """True when the process is ready and all its conditions hold."""
        return self.ready and all(holds() for holds in self.conditions)

    @property
    def is_live(self) -> bool:
        """False when a computation has exceeded its deadline; see `compute_within_deadline`."""
        return not self.watchdog.overdue_call

    @property
    def computation_deadline(self) -> float:
        """Seconds after which a command counts as hung: the job's step timeout and a margin."""
        return self.job.spec.trainer.step_timeout_seconds + _DEADLINE_MARGIN_SECONDS

    async def compute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function on the compute thread, so that the event loop stays responsive; calls are executed
        in order.

        Raises the exception of the function. A call that has started runs to its end when its caller is
        cancelled.
        """
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return await self.compute_named(name, partial(function, *args, **kwargs))

    async def compute_within_deadline(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function like `compute`; the process ends when it exceeds `computation_deadline`."""
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return await self.compute_named(name, partial(function, *args, **kwargs), self.computation_deadline)

    def with_deadline(self, name: str, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function for any thread. The process ends when it exceeds `computation_deadline`."""

        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.watchdog.limit(name, self.computation_deadline):
                return function(*args, **kwargs)

        return run

    async def compute_named(self, name: str, function: Callable[[], R], deadline: float | None = None) -> R:
        """Run a function like `compute`, under a name for heartbeats and messages.

        Args:
            deadline: Seconds after its start at which the watchdog ends the process; None: never.
        """
        watched = nullcontext() if deadline is None else self.watchdog.limit(name, deadline)

        def named() -> R:
            self.current_computation = name
            try:
                with self.busy_share.measure(), watched:
                    return function()
            finally:
                self.current_computation = ""

        return await asyncio.get_running_loop().run_in_executor(self._executor, named)

    @asynccontextmanager
    async def serve(self, servicers: Sequence[object]) -> AsyncIterator[RpcServer]:
        """Serve the servicers at the process's address as SERVING while the context is open.

        Raises:
            PortInUse: The port is taken.
            ValueError: The process has no listen address.
        """
        settings = self.settings
        if settings.listen is None:
            raise ValueError(f"{settings.name} serves, but its settings hold no listen address")
        grace = min(_SERVER_GRACE_SECONDS, self.job.spec.lifecycle.grace_period_seconds / 2)
        async with RpcServer(
            settings.listen, settings.tls, servicers, self.metrics.observe_rpc, grace
        ) as server:
            await server.set_serving(True)
            self.ready = True
            try:
                yield server
            finally:
                self.ready = False

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """Connect to the job's bus while the context is open. Raises BusUnavailable."""
        settings = self.settings
        record_bytes = read_routing_record_bytes(settings.run_dir)
        bounds = bus_bounds(self.job, read_longest_context(settings.run_dir), record_bytes)
        bus = await JetStreamBus.connect(
            settings.nats,
            settings.tls,
            name=settings.name,
            bounds=bounds,
            updates_bounds=settings.role is Role.DRIVER,
        )
        try:
            yield InstrumentedBus(bus, self.metrics.bus_messages, self.metrics.bus_messages_lost)
        finally:
            await bus.close()

    def close(self) -> None:
        """Accept no more computations. A running computation goes on."""
        for part in (self, *self._sub_contexts):
            part._executor.shutdown(wait=False, cancel_futures=True)
