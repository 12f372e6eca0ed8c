"""Role processes of a job as units of the supervisor."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kubealign.local.processes.devices import device_environment
from kubealign.local.processes.fork_server import ChildProcess, ForkServer
from kubealign.local.processes.liveness import TouchedFileProbe
from kubealign.local.processes.readiness import wait_until_serving
from kubealign.local.processes.supervisor import ManagedProcess, ManagedUnit
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.runner.settings import Addresses, ProcessEnvironment, build_settings, write_settings
from kubealign.process_settings import STACKS_SIGNAL, Role
from kubealign.role_specs import SERVERS
from kubealign.roles import Process


class RoleUnits:
    """Builds supervisor units from role processes.

    `environment` is called when a process starts: the servers have their addresses by then. So is `devices`,
    with the name of the process; it returns the GPUs of the process, none where the machine has none.
    """

    def __init__(
        self,
        folder: RunDirectory,
        fork_server: ForkServer,
        environment: Callable[[], ProcessEnvironment],
        addresses: Addresses,
        devices: Callable[[str], Sequence[str]],
    ) -> None:
        self._folder = folder
        self._fork_server = fork_server
        self._environment = environment
        self._addresses = addresses
        self._devices = devices

    def build(self, started: Sequence[Process], processes: Sequence[Process]) -> Iterator[ManagedUnit]:
        """Yield the units of the processes in `started`; processes that restart together form one unit.

        Args:
            processes: All processes of the job.
        """
        for name in dict.fromkeys(process.unit for process in started):
            yield self._unit([process for process in started if process.unit == name], processes)

    def _unit(self, members: Sequence[Process], processes: Sequence[Process]) -> ManagedUnit:
        first = members[0]
        return ManagedUnit(
            name=first.unit,
            group=first.group,
            members=tuple(self._member(process, processes) for process in members),
            after=(*SERVERS, *first.after),
            one_shot=first.one_shot,
            ends_job=first.group == Role.DRIVER,
            prepare=partial(self._addresses.renew_rendezvous, first.unit)
            if first.world_size > 1
            else _no_preparation,
        )

    def _member(self, process: Process, processes: Sequence[Process]) -> ManagedProcess:
        async def start() -> ChildProcess:
            settings = build_settings(process, processes, self._environment(), self._addresses)
            assert settings.liveness is not None
            probe.start(settings.liveness)
            path = write_settings(settings, self._folder.settings)
            log = self._folder.log_path(process.name)
            variables = device_environment(self._devices(process.name))
            return await self._fork_server.start_module(
                process.name, log, process.module, [str(path)], variables
            )

        probe = TouchedFileProbe()

        async def ready() -> None:
            address = self._addresses.listen_address(process)
            assert address is not None
            await wait_until_serving(address, self._environment().tls[Role.RUNNER])

        return ManagedProcess(
            name=process.name,
            start=start,
            wait_ready=ready if process.serves else None,
            readiness_condition=f"gRPC health of {process.name} to say SERVING",
            probe=probe,
            stacks_signal=STACKS_SIGNAL,
            termination=self._folder.termination_path(process.name),
        )


def _no_preparation() -> None:
    """Do nothing: single ranks need no rendezvous address."""
