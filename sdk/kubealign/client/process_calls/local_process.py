"""Processes of a run on this machine: name, address, and the certificates that may call them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kubealign.client.backends.base import JobBackend
from kubealign.client.backends.local.role_names import is_primary
from kubealign.client.errors import Forbidden, NotPossible
from kubealign.client.records import JobRef, ProcessRecord, ProcessState
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.process_settings import ProcessSettings, TlsFiles
from kubealign.role_specs import SERVERS
from kubealign.spec.status import JobPhase

_ACTIVE_PHASES = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.SUSPENDING)
_LISTENING_STATES = (ProcessState.STARTING, ProcessState.READY)


@dataclass(frozen=True)
class LocalProcess:
    """Address of a process, and the folder with the certificates of its run."""

    name: str
    #: host:port of the gRPC server.
    address: str
    tls: Path

    def certificate(self, roles: Iterable[str]) -> TlsFiles:
        """Return the certificate of the first of these roles that the run has; the run has one of each of its
        roles, and one of its runner.

        Raises NotPossible.
        """
        roles = tuple(roles)
        for role in roles:
            files = TlsFiles.of_role(self.tls, role)
            if files.certificate.is_file() and files.key.is_file():
                return files
        allowed = f"only {', '.join(roles)} may" if roles else "the contract lets no role do so"
        raise NotPossible(f"{self.tls} has no certificate that may call {self.name}: {allowed}")


async def locate_process(backend: JobBackend, runs_dir: Path, ref: JobRef, name: str) -> LocalProcess:
    """Return a process of a running job of this machine.

    Args:
        name: Name, group or role of the process: rollout-1, reward-helpful, reference. A group or role
            means its first process.

    Raises:
        JobNotFound: The job does not exist.
        NotPossible: The job does not run, has no such process, or the process has no gRPC server.
        Forbidden: The run directory belongs to another user.
    """
    record = await backend.get(ref)
    if record.phase not in _ACTIVE_PHASES:
        reason = f": {record.status.message}" if record.status.message else ""
        raise NotPossible(f"{ref} does not run, it is {record.phase}{reason}")
    process = select_process(ref, await backend.processes(ref), name)
    if process.state not in _LISTENING_STATES:
        reason = f": {process.message}" if process.message else ""
        raise NotPossible(f"{process.name} of {ref} cannot be called, it is {process.state}{reason}")
    folder = RunDirectory(runs_dir / ref.name)
    settings = _read_settings(folder.settings / f"{process.name}.json")
    if settings.listen is None:
        raise NotPossible(f"{process.name} of {ref} has no gRPC server")
    return LocalProcess(process.name, settings.listen, folder.tls)


def select_process(ref: JobRef, processes: Sequence[ProcessRecord], name: str) -> ProcessRecord:
    """Return the process with this name, or the first one of this group or role. Raises NotPossible."""
    callable_processes = [process for process in processes if process.name not in SERVERS]
    by_name = {process.name: process for process in callable_processes}
    for candidate in (name, f"{name}-0"):
        if candidate in by_name:
            return by_name[candidate]
    for process in callable_processes:
        if process.role == name and is_primary(process.name):
            return process
    raise NotPossible(f"{ref} has no process {name}: there are {', '.join(by_name)}")


def _read_settings(path: Path) -> ProcessSettings:
    try:
        return ProcessSettings.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise NotPossible(f"{path.stem} has not started yet: there is no {path}") from None
    except PermissionError:
        raise Forbidden(f"{path} cannot be read: only the user who runs the job can call it") from None
    except ValidationError as error:
        raise NotPossible(f"{path} was written by another release of kubealign: {error}") from None
