"""What a role's container finds: where things are mounted, which ports it serves, and `PodSettings`.

The operator renders pods with these names, and `kubealign_services.process.pod` reads them in the container:
the two meet here alone.
"""

from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from kubealign.process import Role

GRPC_PORT = 7070
METRICS_PORT = 9090
#: Plain HTTP: `/livez` and `/readyz`.
HEALTH_PORT = 8081
NATS_PORT = 4222
RENDEZVOUS_PORT = 29500

#: A Secret: the files named below, the certificate that of the pod's own role.
SECRETS = "/etc/kubealign/credentials"
CA_FILE = "ca.pem"
CERTIFICATE_FILE = "tls.pem"
KEY_FILE = "tls-key.pem"
NATS_PASSWORD_FILE = "nats-password"
REDIS_PASSWORD_FILE = "redis-password"
#: Optional: the CA of the platform's Redis; without it the image's trusted certificates serve.
REDIS_CA_FILE = "redis-ca.pem"

#: The AlignmentJob as JSON, from a ConfigMap.
DOCUMENT = "/etc/kubealign/job/job.json"
#: A memory emptyDir that the process may write: its settings file, which holds passwords.
RUNTIME = "/run/kubealign"
#: An emptyDir for temporary files: the root file system is read-only.
SCRATCH = "/tmp"
#: Claims are mounted at VOLUMES/CLAIM.
VOLUMES = "/volumes"
#: ConfigMaps with the functions of rewards are mounted at FUNCTIONS/CONFIGMAP.
FUNCTIONS = "/etc/kubealign/functions"
TERMINATION = "/dev/termination-log"
#: How much of it Kubernetes keeps.
TERMINATION_BYTES = 4096
#: A memory emptyDir of the pod's own, for the copies of the weights.
SHARED_MEMORY = "/dev/shm"
#: Of the NATS container: an emptyDir for its streams.
NATS_DATA = "/data"

#: PodSettings as JSON.
ENV_SETTINGS = "KUBEALIGN_SETTINGS"
#: The container's limit of cores, rounded up (downward API, limits.cpu, divisor 1).
ENV_CPUS = "KUBEALIGN_CPUS"

#: After the image's Python: `-m ROLE_MODULE MODULE` in a role's container, `-m NATS_MODULE` in the bus's.
ROLE_MODULE = "kubealign_services.process.pod"
NATS_MODULE = "kubealign_services.bus.nats_pod"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PodPorts(_Frozen):
    """Other ports than the usual, for processes that share one network (a host network, one machine)."""

    grpc: int = Field(default=GRPC_PORT, ge=1, le=65535)
    metrics: int = Field(default=METRICS_PORT, ge=1, le=65535)
    health: int = Field(default=HEALTH_PORT, ge=1, le=65535)
    nats: int = Field(default=NATS_PORT, ge=1, le=65535)


class PodRedis(_Frozen):
    """The platform's Redis, and the job's user there. The password is in the Secret."""

    host: str
    port: int = Field(default=6379, ge=1, le=65535)
    user: str
    #: kubealign:NAMESPACE:JOB:
    prefix: str
    tls: bool = False


class PodSettings(_Frozen):
    """What of a process's settings is neither a secret nor the same in every pod."""

    #: Unique within the job: prepare, trainer-0, rollout-1, reward-helpful-0, driver.
    name: str
    role: Role
    #: The DNS name under which the job's other pods reach this one; no port.
    host: str
    rank: int = Field(default=0, ge=0)
    world_size: int = Field(default=1, ge=1)
    #: A reward process: the name of its entry in spec.rewards or in spec.validation.sampling.scores.
    reward: str | None = None
    #: VOLUMES/CLAIM/PATH/JOB-UID.
    run_dir: PurePosixPath
    #: Where the result of each job that this one depends on lies: name -> Hugging Face folder.
    results: dict[str, PurePosixPath] = {}
    #: It has a gRPC server.
    serves: bool
    #: It ends when its work is done: nothing scrapes it.
    one_shot: bool = False
    #: Group -> host:port of those it calls (the driver: trainer, critic; rollout: trainer).
    peers: dict[str, str] = {}
    #: host:port where the ranks of a group meet: rank 0's; None when world_size is 1.
    rendezvous: str | None = None
    nats_host: str
    redis: PodRedis
    ports: PodPorts = PodPorts()
