"""Settings of the processes of a local run: addresses, credentials, folders."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubealign.local.ports import LOOPBACK, Ports
from kubealign.local.run_folder import RunFolder
from kubealign.local.threads import take_turns, threads, yields
from kubealign.process import NatsAccess, ProcessSettings, RedisAccess, Role, TlsFiles
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob


class Addresses:
    """host:port of everything that listens. A process keeps its ports for the whole run."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._known: dict[str, str] = {}
        self._rendezvous: dict[str, str] = {}

    def listen(self, process: Process) -> str | None:
        return self._address(f"listen/{process.name}") if process.serves else None

    def metrics(self, process: Process) -> str | None:
        return None if process.one_shot else self._address(f"metrics/{process.name}")

    def group(self, group: str) -> str:
        """Return the address of the group's first process."""
        return self._address(f"listen/{group}-0")

    def meet_anew(self, unit: str) -> None:
        """Assign a new rendezvous port, so that restarted ranks are not disturbed by old connections."""
        self._rendezvous[unit] = f"{LOOPBACK}:{self._ports.take()}"

    def rendezvous(self, process: Process) -> str | None:
        return self._rendezvous[process.unit] if process.world_size > 1 else None

    def _address(self, key: str) -> str:
        if key not in self._known:
            self._known[key] = f"{LOOPBACK}:{self._ports.take()}"
        return self._known[key]


@dataclass(frozen=True)
class Surroundings:
    """Settings that all processes of a job share."""

    job: AlignmentJob
    folder: RunFolder
    shared_memory: Path
    results: Mapping[str, Path]
    tls: Mapping[Role, TlsFiles]
    nats: NatsAccess
    redis: RedisAccess


def settings_of(
    process: Process, processes: Sequence[Process], surroundings: Surroundings, addresses: Addresses
) -> ProcessSettings:
    """Return the settings of one process."""
    return ProcessSettings(
        name=process.name,
        role=process.role,
        rank=process.rank,
        world_size=process.world_size,
        reward=process.reward,
        job=surroundings.folder.job,
        run_dir=surroundings.folder.root,
        shared_memory=surroundings.shared_memory,
        results=dict(surroundings.results),
        listen=addresses.listen(process),
        metrics=addresses.metrics(process),
        tls=surroundings.tls[process.role],
        nats=surroundings.nats,
        redis=surroundings.redis,
        peers={group: addresses.group(group) for group in process.calls},
        rendezvous=addresses.rendezvous(process),
        threads=threads(process, processes),
        shares_cores=not take_turns(surroundings.job),
        yields=yields(process, processes, surroundings.job),
        termination=surroundings.folder.termination(process.name),
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
