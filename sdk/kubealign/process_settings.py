"""Settings of one role process, the same for a child of the local runner and for a container.

The runner (or the operator) writes the settings as JSON; the process is `python -m MODULE SETTINGS.json`.
The file contains secrets and is readable by its owner only.
"""

import signal
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

#: A role process that receives this signal writes the stacks of its threads to its log.
STACKS_SIGNAL = signal.SIGUSR2
#: Largest gRPC message of servers and clients: a step's packed batch and its columns, with a margin.
MAX_MESSAGE_BYTES = 1 << 30


class Role(StrEnum):
    """Roles of a job's processes: the services, NATS (the bus), and RUNNER, which starts them.

    The values are the names in certificates.
    """

    TRAINER = "trainer"
    CRITIC = "critic"
    REFERENCE = "reference"
    TEACHER = "teacher"
    REWARD = "reward"
    ROLLOUT = "rollout"
    ENVIRONMENT = "environment"
    DRIVER = "driver"
    NATS = "nats"
    RUNNER = "runner"

    @property
    def server_name(self) -> str:
        """DNS name in the role's certificates, by which a client recognises a server of the role.

        No resolver knows it.
        """
        return f"{self}.role.kubealign"


class ExitCode(IntEnum):
    """Exit codes of a process.

    Any other code, including a signal, is a crash, after which the process is restarted.
    """

    DONE = 0
    #: Storage is full or does not answer. The process is started again until it does; that does not count
    #: against the restart budget.
    STORAGE = 74
    #: An error that a restart would not fix (an invalid file, a reward that raises): the job fails with the
    #: termination message.
    PERMANENT = 78
    #: Another driver has taken over the run directory. Not a failure of the job: the process is restarted, if
    #: it still has a place in the job.
    REPLACED = 79
    #: Graceful shutdown after SIGTERM, with work remaining.
    STOPPED = 143


class _SettingsModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TlsFiles(_SettingsModel):
    """PEM files: the job's CA, and this role's certificate and key."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of_role(cls, directory: Path, role: str) -> "TlsFiles":
        """Return the paths of a role's files in a run's folder of certificates."""
        return cls(
            ca=directory / "ca.pem", certificate=directory / f"{role}.pem", key=directory / f"{role}-key.pem"
        )


class NatsAccess(_SettingsModel):
    """URL (tls://host:port) and credentials of the job's NATS server."""

    url: str
    user: str
    password: str
    #: First token of the subjects at which the process receives replies; only its role may subscribe to them.
    inbox_prefix: str = "_INBOX"


class RedisAccess(_SettingsModel):
    """Address and credentials of Redis. The job's user has access only to keys that begin with `prefix`."""

    host: str
    port: int
    user: str
    password: str
    #: kubealign:NAMESPACE:JOB:
    prefix: str
    #: Use TLS with a certificate for `host` signed by `ca`; without `ca`, by a CA that this machine trusts.
    tls: bool = False
    ca: Path | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of a redis client."""
        options: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "username": self.user,
            "password": self.password,
        }
        if self.tls:
            options |= {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True}
            if self.ca is not None:
                options["ssl_ca_certs"] = str(self.ca)
        return options


class ProcessSettings(_SettingsModel):
    """All settings of a role process."""

    #: Unique within the job: trainer-0, rollout-1, reward-helpful-0, driver.
    name: str
    role: Role
    rank: int = 0
    world_size: int = 1
    #: Reward processes: name of the entry in spec.rewards or in spec.validation.sampling.scores,
    #: SET-NAME of one in spec.validation.sets[].sampling.scores.
    reward: str | None = None
    #: Processes of one of several teachers: name of the entry in spec.teachers.
    teacher: str | None = None
    #: The AlignmentJob as JSON; file paths in it are absolute.
    job: Path
    #: The run directory: commits/, result/, logs/, prepared/ (see docs/architecture.md), shared by all of the
    #: job's processes.
    run_dir: Path
    #: The job's folder on a memory file system (/dev/shm) for weight snapshots, removed by the runner.
    shared_memory: Path
    #: Results of the jobs that this one depends on: name -> Hugging Face folder.
    results: dict[str, Path] = {}
    #: Run directory from whose checkpoint the job starts (spec.checkpoint.from); None: from its own weights.
    parent_run: Path | None = None
    #: host:port of the gRPC server; None: no server.
    listen: str | None = None
    #: host:port under which the job's other processes reach the server; None: the same as `listen`.
    advertise: str | None = None
    #: host:port of the Prometheus endpoint.
    metrics: str | None = None
    #: host:port of `/livez` and `/readyz`, plain HTTP; None: no health endpoint.
    health: str | None = None
    #: File that the process touches each second while its event loop runs and no computation exceeds its
    #: deadline; None: none.
    liveness: Path | None = None
    tls: TlsFiles
    nats: NatsAccess
    redis: RedisAccess
    #: Role or reward -> host:port of the called processes (driver: trainer, critic; rollout: trainer).
    peers: dict[str, str] = {}
    #: host:port for the rendezvous of the ranks of a group; None if world_size is 1.
    rendezvous: str | None = None
    #: Compute threads; None: the number of the machine's cores.
    threads: int | None = None
    #: Other processes of the job compute concurrently on the same cores.
    shares_cores: bool = False
    #: The process runs at lower CPU priority than the job's rollout workers.
    yields: bool = False
    #: File for the termination message of a PERMANENT exit.
    termination: Path
