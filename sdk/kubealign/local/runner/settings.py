"""Settings of the processes of a local run: addresses, credentials, folders."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubealign.access.nats_permissions import inbox_prefix
from kubealign.local.processes.cpu import compute_threads, computes_in_turns, should_yield_cpu
from kubealign.local.processes.ports import LOOPBACK, PortAllocator
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess, Role, TlsFiles
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob


class Addresses:
    """host:port of everything that listens. A process keeps its ports for the whole run."""

    def __init__(self, ports: PortAllocator) -> None:
        self._ports = ports
        self._addresses: dict[str, str] = {}
        self._rendezvous: dict[str, str] = {}

    def listen_address(self, process: Process) -> str | None:
        return self._address(f"listen/{process.name}") if process.serves else None

    def metrics_address(self, process: Process) -> str | None:
        return None if process.one_shot else self._address(f"metrics/{process.name}")

    def group_address(self, group: str) -> str:
        """Return the address of the group's first process."""
        return self._address(f"listen/{group}-0")

    def renew_rendezvous(self, unit: str) -> None:
        """Assign a new rendezvous port, so that restarted ranks are not disturbed by old connections."""
        self._rendezvous[unit] = f"{LOOPBACK}:{self._ports.allocate()}"

    def rendezvous(self, process: Process) -> str | None:
        return self._rendezvous[process.unit] if process.world_size > 1 else None

    def _address(self, key: str) -> str:
        if key not in self._addresses:
            self._addresses[key] = f"{LOOPBACK}:{self._ports.allocate()}"
        return self._addresses[key]


@dataclass(frozen=True)
class ProcessEnvironment:
    """Settings that all processes of a job share."""

    job: AlignmentJob
    folder: RunDirectory
    shared_memory: Path
    results: Mapping[str, Path]
    parent_run: Path | None
    tls: Mapping[Role, TlsFiles]
    nats: NatsAccess
    redis: RedisAccess


def build_settings(
    process: Process, processes: Sequence[Process], environment: ProcessEnvironment, addresses: Addresses
) -> ProcessSettings:
    """Return the settings of one process."""
    return ProcessSettings(
        name=process.name,
        role=process.role,
        rank=process.rank,
        world_size=process.world_size,
        reward=process.reward,
        teacher=process.teacher,
        job=environment.folder.job,
        run_dir=environment.folder.root,
        shared_memory=environment.shared_memory,
        results=dict(environment.results),
        parent_run=environment.parent_run,
        listen=addresses.listen_address(process),
        metrics=addresses.metrics_address(process),
        tls=environment.tls[process.role],
        nats=environment.nats.model_copy(update={"inbox_prefix": inbox_prefix(process.role)}),
        redis=environment.redis,
        peers={group: addresses.group_address(group) for group in process.calls},
        rendezvous=addresses.rendezvous(process),
        threads=compute_threads(process, processes),
        shares_cores=not computes_in_turns(environment.job),
        yields=should_yield_cpu(process, processes, environment.job),
        liveness=environment.shared_memory / f"{process.name}.alive",
        termination=environment.folder.termination_path(process.name),
    )


def write_settings(settings: ProcessSettings, folder: Path) -> Path:
    """Write the settings file, which holds secrets, readable by its owner only."""
    path = folder / f"{settings.name}.json"
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(settings.model_dump_json(indent=2))
    draft.replace(path)
    return path
