"""Contract between the operator and a role's container: mount paths, ports, and `PodSettings`.

The operator renders pods with these names, and `kubealign_services.runtime.process.pod_entrypoint` reads
them in the container; no other code connects the two.
"""

from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from kubealign.process_settings import Role

GRPC_PORT = 7070
METRICS_PORT = 9090
#: Plain HTTP: `/livez` and `/readyz`.
HEALTH_PORT = 8081
NATS_PORT = 4222
#: Health of the NATS server, on the container's loopback interface only: it asks for no password.
NATS_MONITORING_PORT = 8222
RENDEZVOUS_PORT = 29500
#: Endpoint of a rollout worker for external agents, plain HTTP with a token: where the spec names no port.
AGENTS_PORT = 8400

#: Mount path of the Secret with the files below; the certificate is that of the pod's role.
SECRETS_FOLDER = "/etc/kubealign/credentials"
CA_FILE = "ca.pem"
CERTIFICATE_FILE = "tls.pem"
KEY_FILE = "tls-key.pem"
NATS_PASSWORD_FILE = "nats-password"
REDIS_PASSWORD_FILE = "redis-password"
#: Optional: the CA of the platform's Redis; otherwise the image's trusted certificates are used.
REDIS_CA_FILE = "redis-ca.pem"

#: The AlignmentJob as JSON, from a ConfigMap.
JOB_DOCUMENT = "/etc/kubealign/job/job.json"
#: A writable memory emptyDir for the process's settings file, which contains passwords.
RUNTIME_FOLDER = "/run/kubealign"
#: An emptyDir for temporary files, since the root file system is read-only.
SCRATCH_FOLDER = "/tmp"
#: Claims are mounted at VOLUMES/CLAIM.
VOLUMES_FOLDER = "/volumes"
#: ConfigMaps with the functions of rewards are mounted at FUNCTIONS/CONFIGMAP.
FUNCTIONS_FOLDER = "/etc/kubealign/functions"
TERMINATION_FILE = "/dev/termination-log"
#: Maximum size of a termination message that Kubernetes keeps.
TERMINATION_BYTES = 4096
#: A memory emptyDir of the pod for copies of the weights.
SHARED_MEMORY_FOLDER = "/dev/shm"
#: An emptyDir of the NATS container for its streams.
NATS_DATA_FOLDER = "/data"

#: PodSettings as JSON.
ENV_SETTINGS = "KUBEALIGN_SETTINGS"
#: The container's CPU limit, rounded up (downward API, limits.cpu, divisor 1).
ENV_CPUS = "KUBEALIGN_CPUS"

#: Python arguments: `-m ROLE_MODULE MODULE` in a role's container, `-m NATS_MODULE` in the NATS container,
#: whose liveness probe is `-m NATS_PROBE_MODULE NATS_MONITORING_PORT`.
ROLE_MODULE = "kubealign_services.runtime.process.pod_entrypoint"
NATS_MODULE = "kubealign_services.messaging.jetstream.nats_entrypoint"
NATS_PROBE_MODULE = "kubealign_services.messaging.jetstream.nats_probe"
#: preStop hook: `-m DRAIN_MODULE HOST PORT SECONDS`, with the driver's health port.
DRAIN_MODULE = "kubealign_services.runtime.process.wait_for_driver"


class _PodModel(BaseModel):
    """Base class of what the operator tells a pod. Fields that a newer operator adds are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PodPorts(_PodModel):
    """Ports of a process, for processes that share a network (host network, one machine)."""

    grpc: int = Field(default=GRPC_PORT, ge=1, le=65535)
    metrics: int = Field(default=METRICS_PORT, ge=1, le=65535)
    health: int = Field(default=HEALTH_PORT, ge=1, le=65535)
    nats: int = Field(default=NATS_PORT, ge=1, le=65535)
    #: Rendezvous of the ranks of a group, at the first one.
    rendezvous: int = Field(default=RENDEZVOUS_PORT, ge=1, le=65535)

    def of_process(self, index: int) -> "PodPorts":
        """Return the ports of the process with this index in its pod, from 0.

        Health follows that of the pod as a whole where the pod has several processes.
        """
        return self.model_copy(update={"grpc": self.grpc + index, "metrics": self.metrics + index})


class PodRedis(_PodModel):
    """The platform's Redis and the job's user in it. The password is in the Secret."""

    host: str
    port: int = Field(default=6379, ge=1, le=65535)
    user: str
    #: kubealign:NAMESPACE:JOB:
    prefix: str
    tls: bool = False


class PodCompanion(_PodModel):
    """A further rank in the pod, with the settings in which it differs from the first one."""

    name: str
    rank: int = Field(ge=0)
    #: The process has a gRPC server.
    serves: bool = False


class PodSettings(_PodModel):
    """Settings of a pod's first process that are neither secret nor equal in every pod."""

    #: Unique within the job: prepare, trainer-0, rollout-1, reward-helpful-0, driver.
    name: str
    role: Role
    #: DNS name of this pod for the job's other pods; no port.
    host: str
    rank: int = Field(default=0, ge=0)
    world_size: int = Field(default=1, ge=1)
    #: Reward processes: name of the entry in spec.rewards or in spec.validation.sampling.scores,
    #: SET-NAME of one in spec.validation.sets[].sampling.scores.
    reward: str | None = None
    #: Processes of one of several teachers: name of the entry in spec.teachers.
    teacher: str | None = None
    #: VOLUMES/CLAIM/PATH/JOB-UID.
    run_dir: PurePosixPath
    #: Results of the jobs that this one depends on: name -> Hugging Face folder.
    results: dict[str, PurePosixPath] = {}
    #: Run directory from whose checkpoint the job starts; None: from its own weights.
    parent_run: PurePosixPath | None = None
    #: The process has a gRPC server.
    serves: bool
    #: The process ends when its work is done, so its metrics are not scraped.
    one_shot: bool = False
    #: Group -> host:port of the processes that this one calls (driver: trainer, critic; rollout: trainer).
    peers: dict[str, str] = {}
    #: host:port of rank 0 for the rendezvous of the ranks; None if world_size is 1.
    rendezvous: str | None = None
    nats_host: str
    redis: PodRedis
    ports: PodPorts = PodPorts()
    #: Further ranks of the same unit in this pod, by rank.
    companions: tuple[PodCompanion, ...] = ()

    @property
    def processes(self) -> tuple[PodCompanion, ...]:
        """All processes of the pod, by rank."""
        return (PodCompanion(name=self.name, rank=self.rank, serves=self.serves), *self.companions)
