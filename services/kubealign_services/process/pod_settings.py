"""From what a pod is given to what a role process is told."""

from pathlib import Path

from kubealign.nats_config import USER
from kubealign.pod import NATS_PASSWORD_FILE, REDIS_PASSWORD_FILE, PodSettings
from kubealign.process import NatsAccess, ProcessSettings, RedisAccess
from kubealign.spec.job import AlignmentJob
from kubealign.spec.rollout import Transport
from kubealign_services.process.failures import PermanentFailure
from kubealign_services.process.mounts import Mounts

#: A pod has an address of its own, unknown when its settings are made.
_EVERY_ADDRESS = "0.0.0.0"


def settings_of(pod: PodSettings, mounts: Mounts, threads: int | None) -> ProcessSettings:
    """The settings of this pod's process. Raises PermanentFailure for a Secret that lacks something."""
    ports = pod.ports
    return ProcessSettings(
        name=pod.name,
        role=pod.role,
        rank=pod.rank,
        world_size=pod.world_size,
        reward=pod.reward,
        job=mounts.document,
        run_dir=Path(pod.run_dir),
        shared_memory=mounts.shared_memory / "kubealign",
        results={name: Path(folder) for name, folder in pod.results.items()},
        listen=f"{_EVERY_ADDRESS}:{ports.grpc}" if pod.serves else None,
        advertise=f"{pod.host}:{ports.grpc}" if pod.serves else None,
        metrics=None if pod.one_shot else f"{_EVERY_ADDRESS}:{ports.metrics}",
        health=f"{_EVERY_ADDRESS}:{ports.health}",
        tls=mounts.tls,
        nats=NatsAccess(
            url=f"tls://{pod.nats_host}:{ports.nats}", user=USER, password=mounts.secret(NATS_PASSWORD_FILE)
        ),
        redis=RedisAccess(
            host=pod.redis.host,
            port=pod.redis.port,
            user=pod.redis.user,
            password=mounts.secret(REDIS_PASSWORD_FILE),
            prefix=pod.redis.prefix,
            tls=pod.redis.tls,
            ca=mounts.redis_ca if pod.redis.tls else None,
        ),
        peers=pod.peers,
        rendezvous=pod.rendezvous,
        threads=threads,
        termination=mounts.termination,
    )


def check_fits_pods(job: AlignmentJob) -> None:
    """Raise PermanentFailure for what a job may ask for on one machine only."""
    rollout = job.spec.effective_rollout
    if rollout is not None and rollout.refit.transport is Transport.SHARED_MEMORY:
        raise PermanentFailure(
            "spec.rollout.refit.transport is SharedMemory, but pods share no memory: set Auto or Stream"
        )
