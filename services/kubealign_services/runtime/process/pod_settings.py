"""Conversion of a pod's settings into the settings of its role process."""

from pathlib import Path

from kubealign.nats_config import NATS_USER
from kubealign.pod_contract import NATS_PASSWORD_FILE, REDIS_PASSWORD_FILE, PodSettings
from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import WeightTransport
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.mounts import Mounts

#: Listen on all interfaces: the pod's address is unknown when its settings are made.
_EVERY_ADDRESS = "0.0.0.0"


def build_process_settings(pod: PodSettings, mounts: Mounts, threads: int | None) -> ProcessSettings:
    """Return the settings of this pod's process. Raises PermanentFailure for an incomplete Secret."""
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
            url=f"tls://{pod.nats_host}:{ports.nats}",
            user=NATS_USER,
            password=mounts.secret(NATS_PASSWORD_FILE),
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


def check_runs_in_pods(job: AlignmentJob) -> None:
    """Raise PermanentFailure for options that are only supported on one machine."""
    rollout = job.spec.effective_rollout
    if rollout is not None and rollout.refit.transport is WeightTransport.SHARED_MEMORY:
        raise PermanentFailure(
            "spec.rollout.refit.transport is SharedMemory, but pods share no memory: set Auto or Stream"
        )
