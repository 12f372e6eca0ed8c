"""Role processes of a job as units of the supervisor."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kubealign.local.fork_server import Child, ForkServer
from kubealign.local.readiness import serving
from kubealign.local.run_folder import RunFolder
from kubealign.local.settings import Addresses, Surroundings, settings_of, write_settings
from kubealign.local.supervisor import Member, Unit
from kubealign.process import Role
from kubealign.roles import Process

NATS = "nats"
REDIS = "redis"


class RoleUnits:
    """Builds supervisor units from role processes.

    `environment` is called when a process starts: the servers have their addresses by then.
    """

    def __init__(
        self,
        folder: RunFolder,
        fork_server: ForkServer,
        surroundings: Callable[[], Surroundings],
        addresses: Addresses,
    ) -> None:
        self._folder = folder
        self._fork_server = fork_server
        self._surroundings = surroundings
        self._addresses = addresses

    def of(self, started: Sequence[Process], processes: Sequence[Process]) -> Iterator[Unit]:
        """Yield the units of the processes in `started`; processes that restart together form one unit.

        Args:
            processes: All processes of the job.
        """
        for name in dict.fromkeys(process.unit for process in started):
            yield self._unit([process for process in started if process.unit == name], processes)

    def _unit(self, members: Sequence[Process], processes: Sequence[Process]) -> Unit:
        first = members[0]
        return Unit(
            name=first.unit,
            group=first.group,
            members=tuple(self._member(process, processes) for process in members),
            after=(NATS, REDIS, *first.after),
            one_shot=first.one_shot,
            ends_job=first.role is Role.DRIVER and not first.one_shot,
            prepare=partial(self._addresses.meet_anew, first.unit) if first.world_size > 1 else _nothing,
        )

    def _member(self, process: Process, processes: Sequence[Process]) -> Member:
        async def start() -> Child:
            settings = settings_of(process, processes, self._surroundings(), self._addresses)
            path = write_settings(settings, self._folder.settings)
            log = self._folder.log(process.name)
            return await self._fork_server.module(process.name, log, process.module, [str(path)])

        async def ready() -> None:
            address = self._addresses.listen(process)
            assert address is not None
            await serving(address, self._surroundings().tls[Role.RUNNER])

        return Member(
            name=process.name,
            start=start,
            ready=ready if process.serves else None,
            waits_for=f"gRPC health of {process.name} to say SERVING",
            termination=self._folder.termination(process.name),
        )


def _nothing() -> None:
    """Do nothing: single ranks need no rendezvous address."""
