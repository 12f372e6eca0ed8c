"""Runs the containers of a job without a cluster: each role starts through the pod entry point, with the
volumes that Kubernetes would mount in its own folder."""

import asyncio
import http.client
import json
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from kubealign import pod_contract
from kubealign.access.certificate_authority import CertificateAuthority, IssuedCertificate
from kubealign.local.errors import RunRefused
from kubealign.local.processes.fork_server import ChildProcess, ForkServer
from kubealign.local.processes.ports import LOOPBACK, PortAllocator
from kubealign.local.servers.redis import LocalRedisServer
from kubealign.pod_contract import PodCompanion, PodPorts, PodRedis, PodSettings
from kubealign.process_settings import Role
from kubealign.roles import PREPARE, Process, roles
from kubealign.spec.job import AlignmentJob
from kubealign_operator.manifests.context import Platform
from kubealign_operator.manifests.pod_layout import arrange_pods, processes_per_pod
from kubealign_services.runtime.process.mounts import Mounts

_POLL_SECONDS = 0.1
#: Timeout of every wait.
_SECONDS = 90.0
_NATS_PASSWORD = "nats-secret"
_PROGRAM = "support.pod_process"


class Container:
    """One process, with a folder in place of its root."""

    def __init__(self, name: str, root: Path, health: int | None) -> None:
        self.name = name
        self.mounts = Mounts(root)
        self._health = health
        self._root = root
        self._child: ChildProcess | None = None
        for folder in (self.mounts.secrets, self.mounts.runtime, self.mounts.document.parent):
            folder.mkdir(parents=True)
        self.mounts.shared_memory.mkdir(parents=True)
        # Created by the container runtime before the start.
        self.mounts.termination.touch()

    async def start(
        self, fork_server: ForkServer, arguments: list[str], environment: Mapping[str, str]
    ) -> None:
        given = [str(self._root), json.dumps(environment), *arguments]
        self._child = await fork_server.start_module(self.name, self._root / "log", _PROGRAM, given)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def log(self) -> str:
        return (self._root / "log").read_text()

    async def answers(self, path: str) -> bool:
        """Return the result of an HTTP probe, like a kubelet's."""
        return await asyncio.to_thread(self._probe, path)

    def _probe(self, path: str) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self._health, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    async def end(self, timeout: float) -> int:
        """Wait for the process to end and return its exit code."""
        assert self._child is not None
        try:
            return await asyncio.wait_for(self._child.wait(), timeout)
        except TimeoutError:
            raise AssertionError(f"{self.name} had not ended after {timeout:g} s:\n{self.log}") from None

    async def ready(self, timeout: float) -> None:
        """Wait until the readiness probe succeeds."""
        assert self._child is not None
        try:
            async with asyncio.timeout(timeout):
                while not await self.answers("/readyz"):
                    assert self._child.is_running, f"{self.name} ended:\n{self.log}"
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{self.name} was not ready after {timeout:g} s:\n{self.log}") from None

    def stop(self) -> None:
        """Send SIGTERM, like a kubelet."""
        assert self._child is not None
        self._child.terminate()

    async def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            await self._child.wait()


class JobPods:
    """The containers of one job. An async context manager that leaves no process running.

    run_dir: run directory on the shared volume. results: name of another job -> its result."""

    def __init__(
        self,
        fork_server: ForkServer,
        folder: Path,
        job: AlignmentJob,
        run_dir: Path,
        results: Mapping[str, Path] | None = None,
    ) -> None:
        self.job = job
        self.run_dir = run_dir
        self.containers: dict[str, Container] = {}
        self._fork_server = fork_server
        self._folder = folder
        self._results = {name: PurePosixPath(path) for name, path in (results or {}).items()}
        self._ports = PortAllocator()
        self._further_ports: list[PortAllocator] = []
        platform = Platform(image="image", redis_host=LOOPBACK)
        pod_size = partial(processes_per_pod, platform, job.spec)
        self._processes = arrange_pods(roles(job), (), pod_size)
        self._own = {process.name: self._pod_ports(len(process.companions)) for process in self._processes}
        self._rendezvous = {
            process.unit: f"{LOOPBACK}:{self._ports.allocate()}"
            for process in self._processes
            if process.world_size > 1
        }
        self._nats_port = self._ports.allocate()
        self._authority = CertificateAuthority.create(self.job.name, timedelta(hours=1))
        #: One certificate for each role, as in the job's Secret.
        self._issued: dict[Role, IssuedCertificate] = {}
        prefix = f"kubealign:default:{self.job.name}:"
        folder.mkdir()
        self._redis = LocalRedisServer(folder, self._ports.allocate(), prefix, "redis-secret", "admin-secret")
        self._redis_process: ChildProcess | None = None

    async def __aenter__(self) -> "JobPods":
        self._redis_process = await self._fork_server.start_program(
            "redis", self._folder / "redis.log", self._redis.command()
        )
        container = self._container("nats", Role.NATS, None)
        ports = [str(self._nats_port), str(self._ports.allocate())]
        await container.start(self._fork_server, ["nats", *ports], {})
        return self

    async def __aexit__(self, *error: object) -> None:
        for container in self.containers.values():
            await container.kill()
        if self._redis_process is not None:
            self._redis_process.kill()
            await self._redis_process.wait()

    async def prepare(self) -> int:
        """Run the preparation container to its end and return its exit code."""
        container = await self.start(self._process(PREPARE))
        return await container.end(_SECONDS)

    async def start_workers(self) -> None:
        """Start all containers except the driver, and wait until they are ready."""
        for process in self._workers():
            await self.start(process)
        for process in self._workers():
            await self.containers[process.name].ready(_SECONDS)

    async def drive(self) -> Container:
        """Start the driver and wait until it is ready."""
        container = await self.start(self._process("driver"))
        await container.ready(_SECONDS)
        return container

    async def stop(self) -> dict[str, int]:
        """Shut the workers down gracefully and return their exit codes."""
        workers = [self.containers[process.name] for process in self._workers()]
        for container in workers:
            container.stop()
        return {container.name: await container.end(_SECONDS) for container in workers}

    async def start(self, process: Process) -> Container:
        container = self._container(process.name, process.role, self._own[process.name].health)
        container.mounts.document.write_text(self.job.model_dump_json(by_alias=True))
        (container.mounts.secrets / pod_contract.REDIS_PASSWORD_FILE).write_text("redis-secret")
        settings = PodSettings(
            name=process.name,
            role=process.role,
            host=LOOPBACK,
            rank=process.rank,
            world_size=process.world_size,
            reward=process.reward,
            run_dir=PurePosixPath(self.run_dir),
            results=self._results,
            serves=process.serves,
            one_shot=process.one_shot,
            peers={group: f"{LOOPBACK}:{self._own[f'{group}-0'].grpc}" for group in process.calls},
            nats_host=LOOPBACK,
            redis=PodRedis(
                host=LOOPBACK,
                port=self._redis.port,
                user=self._redis.access.user,
                prefix=self._redis.prefix,
            ),
            ports=self._own[process.name].model_copy(update={"nats": self._nats_port}),
            rendezvous=self._rendezvous.get(process.unit) if process.world_size > 1 else None,
            companions=tuple(
                PodCompanion(name=each.name, rank=each.rank, serves=each.serves)
                for each in process.companions
            ),
        )
        environment = {
            pod_contract.ENV_SETTINGS: settings.model_dump_json(exclude_defaults=True),
            pod_contract.ENV_CPUS: "1",
        }
        await container.start(self._fork_server, [process.module], environment)
        return container

    def metrics(self) -> list[dict[str, Any]]:
        """Return every line of metrics.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    def _workers(self) -> list[Process]:
        return [process for process in self._processes if process.role is not Role.DRIVER]

    def _process(self, name: str) -> Process:
        return next(process for process in self._processes if process.name == name)

    def _pod_ports(self, companions: int) -> PodPorts:
        return PodPorts(
            grpc=self._allocate_range(1 + companions),
            metrics=self._allocate_range(1 + companions),
            # The pod's own, then one for each of several processes.
            health=self._allocate_range(2 + companions if companions else 1),
        )

    def _allocate_range(self, count: int) -> int:
        """Allocate consecutive ports and return the first one."""
        while True:
            first = self._ports.allocate()
            following = range(first + 1, first + count)
            allocator = PortAllocator(iter(following))
            try:
                if [allocator.allocate() for _ in following] == list(following):
                    self._further_ports.append(allocator)
                    return first
            except RunRefused:
                continue

    def _container(self, name: str, role: Role, health: int | None) -> Container:
        container = Container(name, self._folder / name, health)
        if role not in self._issued:
            self._issued[role] = self._authority.issue(role)
        issued = self._issued[role]
        secrets = {
            pod_contract.CA_FILE: self._authority.certificate_pem,
            pod_contract.CERTIFICATE_FILE: issued.certificate_pem,
            pod_contract.KEY_FILE: issued.key_pem,
            pod_contract.NATS_PASSWORD_FILE: _NATS_PASSWORD.encode(),
        }
        for file, content in secrets.items():
            (container.mounts.secrets / file).write_bytes(content)
        self.containers[name] = container
        return container
