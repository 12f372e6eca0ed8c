"""What one role process is told when it starts: the same for a child of the local runner and for a container.

The runner (or the operator) writes it as JSON; the process is `python -m MODULE SETTINGS.json`. It
holds secrets, so the file is readable by its owner alone.
"""

from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class Role(StrEnum):
    """The services of a job, NATS, its bus, and RUNNER, what starts them: the names in certificates."""

    TRAINER = "trainer"
    CRITIC = "critic"
    REFERENCE = "reference"
    TEACHER = "teacher"
    REWARD = "reward"
    ROLLOUT = "rollout"
    DRIVER = "driver"
    NATS = "nats"
    RUNNER = "runner"


class Exit(IntEnum):
    """How a process ends. Anything else, a signal included, is a crash: it is started again."""

    DONE = 0
    #: Nothing that a restart would mend (a wrong file, a reward that raises): the job fails with the
    #: termination message.
    PERMANENT = 78
    #: Stopped in good order after SIGTERM, with work left.
    STOPPED = 143


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TlsFiles(_Frozen):
    """PEM files: the job's CA, and this role's certificate and key."""

    ca: Path
    certificate: Path
    key: Path


class NatsAccess(_Frozen):
    """tls://host:port, with a user of the job's own server."""

    url: str
    user: str
    password: str


class RedisAccess(_Frozen):
    """The job's user may touch keys that begin with `prefix` only."""

    host: str
    port: int
    user: str
    password: str
    #: kubealign:NAMESPACE:JOB:
    prefix: str
    #: Over TLS, with a certificate for `host` that `ca` has signed; without `ca`, one that this machine
    #: trusts.
    tls: bool = False
    ca: Path | None = None

    @property
    def options(self) -> dict[str, Any]:
        """How a redis client connects."""
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


class ProcessSettings(_Frozen):
    """Everything a role process knows of its surroundings."""

    #: Unique within the job: trainer-0, rollout-1, reward-helpful-0, driver.
    name: str
    role: Role
    rank: int = 0
    world_size: int = 1
    #: A reward process: the name of its entry in spec.rewards or in spec.validation.sampling.scores.
    reward: str | None = None
    #: The AlignmentJob as JSON; file paths in it are absolute.
    job: Path
    #: The run's folder: commits/, result/, logs/, prepared/ (see docs/architecture.md). All of the
    #: job's processes share it.
    run_dir: Path
    #: A folder on a memory file system (/dev/shm), the job's own, for weight snapshots; removed by whoever
    #: starts the job.
    shared_memory: Path
    #: Where the result of each job that this one depends on lies: name -> Hugging Face folder.
    results: dict[str, Path] = {}
    #: host:port of the gRPC server; None: it has none.
    listen: str | None = None
    #: host:port under which the job's other processes reach `listen`; None: it is the same.
    advertise: str | None = None
    #: host:port of the Prometheus endpoint.
    metrics: str | None = None
    #: host:port of `/livez` and `/readyz`, plain HTTP; None: it has none.
    health: str | None = None
    tls: TlsFiles
    nats: NatsAccess
    redis: RedisAccess
    #: Role or reward -> host:port of those it calls (the driver: trainer, critic; rollout: trainer).
    peers: dict[str, str] = {}
    #: host:port where the ranks of a group meet; None when world_size is 1.
    rendezvous: str | None = None
    #: Threads of computation; None: the machine's cores.
    threads: int | None = None
    #: Others of the job compute at the same time, on the same cores.
    shares_cores: bool = False
    #: It has what the job's rollout workers leave of them.
    yields: bool = False
    #: Where the cause of a PERMANENT exit is written, as a person would say it.
    termination: Path
