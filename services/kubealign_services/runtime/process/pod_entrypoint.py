"""Container entry point of a role: `python -m kubealign_services.runtime.process.pod_entrypoint MODULE`.

Reads what Kubernetes provides (an environment variable, a Secret, a ConfigMap), writes the settings file
that a role takes on any platform, and runs the role in this process, or, where several ranks share the pod,
in one process for each.
"""

import asyncio
import gc
import importlib
import logging
import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from kubealign.access.nats_permissions import inbox_prefix
from kubealign.library_environment import library_environment
from kubealign.local.processes.devices import device_environment, divide_devices, visible_devices
from kubealign.nats_config import NATS_USER
from kubealign.pod_contract import (
    ENV_CPUS,
    ENV_SETTINGS,
    NATS_PASSWORD_FILE,
    REDIS_PASSWORD_FILE,
    PodSettings,
)
from kubealign.process_settings import ExitCode, NatsAccess, ProcessSettings, RedisAccess
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.rollout import WeightTransport
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.process.mounts import Mounts
from kubealign_services.runtime.process.pod_launcher import run_ranks
from kubealign_services.runtime.process.reaper import run_with_reaper
from kubealign_services.runtime.process.termination_message import write_termination_message
from kubealign_services.telemetry.logs import set_up_logs

log = logging.getLogger(__name__)

_INIT_PID = 1
#: Listen on all interfaces: the pod's address is unknown when its settings are made.
_EVERY_ADDRESS = "0.0.0.0"
_LOOPBACK = "127.0.0.1"


def main(
    argv: Sequence[str], mounts: Mounts | None = None, environment: MutableMapping[str, str] = os.environ
) -> int:
    """Run the role of module argv[1] until it ends; return its exit code.

    Missing configuration of the pod returns PERMANENT, with the cause in the termination message.
    """
    mounts = mounts or Mounts()
    try:
        if len(argv) != 2:
            raise PermanentFailure("a role's container needs one argument, the role's module")
        pod, job, settings = _load_settings(mounts, environment)
        _set_up_libraries(settings[0], environment)
        paths = [_write_settings(each, mounts.runtime) for each in settings]
        if pod.companions:
            set_up_logs(job.name, pod.role, pod.name, sys.stdout)
            return _run_ranks(argv[1], pod, list(zip(settings, paths, strict=True)), mounts, environment)
        try:
            module = _import_module(argv[1])
        except ImportError as error:
            raise PermanentFailure(f"the image cannot import {argv[1]}: {error}") from error
    except PermanentFailure as failure:
        set_up_logs("", "", argv[1] if len(argv) > 1 else "", sys.stdout)
        log.error(str(failure), extra={"permanent": True})
        write_termination_message(mounts.termination, str(failure))
        return ExitCode.PERMANENT
    code: int = module.main([argv[1], str(paths[0])])
    return code


def _run_ranks(
    module: str,
    pod: PodSettings,
    ranks: Sequence[tuple[ProcessSettings, Path]],
    mounts: Mounts,
    environment: Mapping[str, str],
) -> int:
    """Run the ranks of the pod in processes of their own, each with its share of the devices."""
    shares = divide_devices(visible_devices(environment), len(ranks))
    environments = [{**environment, **device_environment(share)} for share in shares]
    health = f"{_EVERY_ADDRESS}:{pod.ports.health}"
    return asyncio.run(run_ranks(module, ranks, environments, health, mounts.termination))


def _import_module(name: str) -> ModuleType:
    """Import a module with garbage collection disabled: collecting would take a seventh of the import time,
    and the imported objects stay anyway.
    """
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()


def _load_settings(
    mounts: Mounts, environment: MutableMapping[str, str]
) -> tuple[PodSettings, AlignmentJob, list[ProcessSettings]]:
    """Return the settings of the pod, the job, and the settings of each process of the pod, by rank."""
    text = environment.get(ENV_SETTINGS)
    if text is None:
        raise PermanentFailure(f"the environment has no {ENV_SETTINGS}: the operator sets it in every pod")
    try:
        pod = PodSettings.model_validate_json(text)
    except ValidationError as error:
        raise PermanentFailure(f"{ENV_SETTINGS} cannot be used: {_first_error(error)}") from error
    try:
        job = AlignmentJob.model_validate_json(mounts.document.read_text())
    except OSError as error:
        raise PermanentFailure(f"the job cannot be read from {mounts.document}: {error.strerror}") from error
    except ValidationError as error:
        raise PermanentFailure(
            f"{mounts.document} is not a job that this image knows: {_first_error(error)}"
        ) from error
    check_runs_in_pods(job)
    threads = _parse_threads(environment.get(ENV_CPUS))
    if threads is not None:
        threads = max(1, threads // len(pod.processes))
    ranks = [build_process_settings(pod, mounts, threads, index) for index in range(len(pod.processes))]
    return pod, job, ranks


def build_process_settings(
    pod: PodSettings, mounts: Mounts, threads: int | None, index: int = 0
) -> ProcessSettings:
    """Return the settings of a process of this pod. Raises PermanentFailure for an incomplete Secret.

    Args:
        threads: Compute threads of the process.
        index: Index of the process in its pod.
    """
    rank, ports = pod.processes[index], pod.ports.of_process(index)
    health, termination = f"{_EVERY_ADDRESS}:{ports.health}", mounts.termination
    if pod.companions:
        # The launcher asks for the health of each rank, and answers the kubelet for all.
        health = f"{_LOOPBACK}:{ports.health + 1 + index}"
        termination = mounts.runtime / f"{rank.name}.termination"
    return ProcessSettings(
        name=rank.name,
        role=pod.role,
        rank=rank.rank,
        world_size=pod.world_size,
        reward=pod.reward,
        teacher=pod.teacher,
        job=mounts.document,
        run_dir=Path(pod.run_dir),
        shared_memory=mounts.shared_memory / "kubealign",
        results={name: Path(folder) for name, folder in pod.results.items()},
        parent_run=None if pod.parent_run is None else Path(pod.parent_run),
        listen=f"{_EVERY_ADDRESS}:{ports.grpc}" if rank.serves else None,
        advertise=f"{pod.host}:{ports.grpc}" if rank.serves else None,
        metrics=None if pod.one_shot else f"{_EVERY_ADDRESS}:{ports.metrics}",
        health=health,
        tls=mounts.tls,
        nats=NatsAccess(
            url=f"tls://{pod.nats_host}:{ports.nats}",
            user=NATS_USER,
            password=mounts.secret(NATS_PASSWORD_FILE),
            inbox_prefix=inbox_prefix(pod.role),
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
        termination=termination,
    )


def check_runs_in_pods(job: AlignmentJob) -> None:
    """Raise PermanentFailure for options that are only supported on one machine."""
    rollout = job.spec.effective_rollout
    if rollout is not None and rollout.refit.transport is WeightTransport.SHARED_MEMORY:
        raise PermanentFailure(
            "spec.rollout.refit.transport is SharedMemory, but pods share no memory: set Auto or Stream"
        )


def _parse_threads(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise PermanentFailure(f"{ENV_CPUS} is {text!r}; it is a number of cores, 1 or more")
    return int(text)


def _set_up_libraries(settings: ProcessSettings, environment: MutableMapping[str, str]) -> None:
    """Set the environment variables that libraries read at import. Existing variables are kept."""
    # CPUs that the pod requests are reserved for it, so its threads may spin.
    for name, value in library_environment(exclusive_cores=settings.threads is not None).items():
        environment.setdefault(name, value)
    if settings.threads is not None:
        # Otherwise the libraries would start a thread for each core of the node.
        environment.setdefault("OMP_NUM_THREADS", str(settings.threads))
    # A shared cache: a model downloaded by one pod is read by all.
    environment.setdefault("HF_HOME", str(settings.run_dir.parent / ".huggingface"))


def _write_settings(settings: ProcessSettings, folder: Path) -> Path:
    path = folder / f"{settings.name}.json"
    try:
        path.touch(mode=0o600)
        path.write_text(settings.model_dump_json(indent=2))
    except OSError as error:
        raise PermanentFailure(f"{path} cannot be written: {error.strerror}") from error
    return path


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"


def run(argv: Sequence[str]) -> int:
    """Run `main`, with a reaper as init process when this is the container's first process."""
    if os.getpid() == _INIT_PID:
        return run_with_reaper(lambda: main(argv))
    return main(argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv))
