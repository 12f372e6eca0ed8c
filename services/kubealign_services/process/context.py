"""What every role's main is given."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from kubealign.process import ProcessSettings, Role
from kubealign.spec.job import AlignmentJob
from kubealign_services.bus.bounds import Bounds, bounds_for
from kubealign_services.bus.contract import Bus
from kubealign_services.bus.jetstream import JetStreamBus
from kubealign_services.rpc.server import Server
from kubealign_services.telemetry.heartbeat import Heartbeat
from kubealign_services.telemetry.metered_bus import MeteredBus
from kubealign_services.telemetry.metrics import Metrics
from kubealign_services.telemetry.pace import BusyShare
from kubealign_services.telemetry.read_model import ReadModel

P = ParamSpec("P")
R = TypeVar("R")

# Calls in progress get this much of the grace period when a server closes.
_SERVER_GRACE_SECONDS = 5.0
# Of prompts whose longest the job leaves to the model's context.
_LONGEST_PROMPT = 8192


@dataclass
class Context:
    """A process's surroundings. `stop` is set when it is told to end."""

    settings: ProcessSettings
    job: AlignmentJob
    logger: logging.Logger
    stop: asyncio.Event
    metrics: Metrics
    read_model: ReadModel
    heartbeat: Heartbeat
    #: Whether it does what it is there for: it serves, or follows the rank that does.
    ready: bool = False
    #: What must be so besides for others to count on it: the server of its engine is well.
    conditions: list[Callable[[], bool]] = field(default_factory=list)
    #: What goes on in a thread that nobody can end; the process ends without it.
    left_behind: str = ""
    #: Of the thread of `compute`.
    busy: BusyShare = field(default_factory=BusyShare)
    #: What the thread of `compute` is busy with.
    computing: str = ""
    _executor: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
    )

    #: Other parts of the same process.
    _others: list["Context"] = field(default_factory=list)

    def beside(self, name: str, role: Role) -> "Context":
        """The surroundings of another part of this process, which has a name and a thread of `compute` of its
        own. It serves nothing, and what it says goes with this part's heartbeats."""
        alone = {"name": name, "role": role, "world_size": 1, "rank": 0, "listen": None, "advertise": None}
        other = replace(
            self,
            settings=self.settings.model_copy(update={**alone, "rendezvous": None}),
            heartbeat=self.heartbeat.beside(),
            computing="",
            _executor=ThreadPoolExecutor(max_workers=1, thread_name_prefix=name),
            _others=[],
        )
        self._others.append(other)
        return other

    @property
    def unfinished(self) -> str:
        """What goes on in a thread of the process, so that it could not simply end; empty: nothing."""
        own = self.computing or self.left_behind
        return own or next((other.unfinished for other in self._others if other.unfinished), "")

    @property
    def answers(self) -> bool:
        """Whether others can count on it now."""
        return self.ready and all(holds() for holds in self.conditions)

    async def compute(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it on the one thread that computes, so that the event loop goes on; calls queue in their order.

        Raises what it raises. A call that was begun goes on to its end when its caller is cancelled."""

        def named() -> R:
            self.computing = getattr(function, "__qualname__", type(function).__qualname__)
            try:
                with self.busy.working():
                    return function(*args, **kwargs)
            finally:
                self.computing = ""

        return await asyncio.get_running_loop().run_in_executor(self._executor, named)

    @asynccontextmanager
    async def serve(self, servicers: Sequence[object]) -> AsyncIterator[Server]:
        """Serve these at the process's address while the context is open, as SERVING.

        Raises PortInUse; ValueError for a process without an address."""
        settings = self.settings
        if settings.listen is None:
            raise ValueError(f"{settings.name} serves, but its settings hold no listen address")
        grace = min(_SERVER_GRACE_SECONDS, self.job.spec.lifecycle.grace_period_seconds / 2)
        async with Server(
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
        """The job's bus, open while the context is. Raises BusUnavailable."""
        settings = self.settings
        bus = await JetStreamBus.connect(
            settings.nats, settings.tls, name=settings.name, bounds=bounds_of(self.job)
        )
        try:
            yield MeteredBus(bus, self.metrics.bus_messages)
        finally:
            await bus.close()

    def close(self) -> None:
        """Take no more computations. One that runs goes on."""
        for part in (self, *self._others):
            part._executor.shutdown(wait=False, cancel_futures=True)


def bounds_of(job: AlignmentJob) -> dict[str, Bounds]:
    """What the bus of this job keeps."""
    spec = job.spec
    algorithm = spec.algorithm.value
    rollout = spec.effective_rollout
    response = rollout.sampling.max_tokens if rollout is not None else 0
    groups = getattr(algorithm, "prompts_per_step", getattr(algorithm, "rows_per_step", 1))
    samples = getattr(algorithm, "samples_per_prompt", 1)
    asked = getattr(algorithm, "longest_template", 0)
    if asked:
        # A question about each sample, with two answers to it; two more responses stand in it.
        groups, samples, response = groups * samples, 2, 3 * response + asked
    return bounds_for(
        groups=groups,
        samples_per_group=samples,
        sources=len(spec.rewards) + len(spec.scores) + 1,
        longest_sequence=(spec.data.value.max_tokens or _LONGEST_PROMPT) + response,
        score_bytes_a_token=8 * algorithm.candidates if spec.teacher is not None else 0,
    )
