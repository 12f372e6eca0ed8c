"""NATS and Redis servers of a job as units of the supervisor."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from kubealign.local.processes.fork_server import ChildProcess, ForkServer
from kubealign.local.processes.ports import LOOPBACK, PortAllocator
from kubealign.local.processes.supervisor import ManagedProcess, ManagedUnit
from kubealign.local.run_dir.layout import RunDirectory


class ServerProgram(Protocol):
    """A program that listens on one port."""

    @property
    def port(self) -> int: ...
    def command(self) -> list[str]: ...
    async def wait_ready(self) -> None: ...
    async def check_alive(self) -> None:
        """Return when the server answers a client. Raises, or does not return, when it does not."""


S = TypeVar("S", bound=ServerProgram)


class ManagedServer(Generic[S]):
    """A server that keeps its port and store once it has been ready.

    Before that, every start takes another port, as a port that looked free may have been taken since.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], S],
        ports: PortAllocator,
        fork_server: ForkServer,
        folder: RunDirectory,
    ) -> None:
        self._name = name
        self._make = make
        self._ports = ports
        self._fork_server = fork_server
        self._folder = folder
        self._server: S | None = None
        self._was_ready = False

    @property
    def server(self) -> S:
        assert self._server is not None
        return self._server

    def unit(self) -> ManagedUnit:
        member = ManagedProcess(
            self._name,
            self._start,
            self._ready,
            readiness_condition=f"the server to answer on {LOOPBACK}",
            probe=self._check_alive,
        )
        return ManagedUnit(self._name, self._name, (member,))

    async def _start(self) -> ChildProcess:
        if self._server is None or not self._was_ready:
            self._server = self._make(self._ports.allocate())
        return await self._fork_server.start_program(
            self._name, self._folder.log_path(self._name), self._server.command()
        )

    async def _ready(self) -> None:
        await self.server.wait_ready()
        self._was_ready = True

    async def _check_alive(self) -> None:
        # Before that, the readiness timeout applies.
        if self._was_ready:
            await self.server.check_alive()
