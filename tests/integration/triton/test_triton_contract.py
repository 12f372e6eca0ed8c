"""The engine contract over a real Triton server that starts once, and a kill and a shutdown of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from prometheus_client import CollectorRegistry, generate_latest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles
from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.rollout import InFlightPolicy
from kubealign_services.generation.contract import EngineLost
from kubealign_services.generation.triton_engine.client import TritonConnection, TritonGenerator
from kubealign_services.generation.triton_engine.metrics import TritonMetrics
from kubealign_services.generation.triton_engine.server import ExternalTritonServer, ManagedTritonServer
from kubealign_services.generation.triton_engine.server_install import TritonInstallation
from kubealign_services.generation.triton_engine.session import EngineSettings
from kubealign_services.runtime.process.failures import PermanentFailure
from support.engine_contract.generation import (
    CAPACITY,
    SECONDS,
    Subject,
    check_same,
    generated,
    group,
    refitted,
    stepped,
    torch_engine,
)
from support.engine_contract.own_engines import OwnEngineContract
from support.engine_contract.tiny_model import weights, write_model
from support.running import alive, children

try:
    TritonInstallation.find()
    ABSENT = ""
except PermanentFailure as failure:
    ABSENT = str(failure)

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(bool(ABSENT), reason=ABSENT),
]

START_SECONDS = 180.0


class Stage:
    """A server, a session with it, and their fixtures."""

    def __init__(self, root: Path, memory: Path) -> None:
        self.memory = memory
        self.folder = write_model(root / "model")
        self.tls: TlsFiles = write_tls(
            root / "tls", CertificateAuthority.create("triton-test", timedelta(hours=1)), Role.ROLLOUT
        )
        self.server = ManagedTritonServer(
            TritonInstallation.find(), memory / "triton-w", self.tls, START_SECONDS
        )
        self.generator = self.client(self.server, START_SECONDS)
        self.running: asyncio.Task[None] | None = None

    async def leave(self) -> None:
        """Stop the task that would restart the server, as a worker does before it stops its own."""
        if self.running is not None:
            self.running.cancel()
            await asyncio.gather(self.running, return_exceptions=True)

    def client(
        self, server: ManagedTritonServer | ExternalTritonServer, patience: float, folder: Path | None = None
    ) -> TritonGenerator:
        opening = EngineSettings(
            "w", folder or self.folder, TorchEngineSpec(max_sequences=CAPACITY), threads=1
        )
        connection = TritonConnection(server, self.tls, patience)
        return TritonGenerator(connection, opening, self.memory, asyncio.to_thread)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    memory = tmp_path_factory.mktemp("memory")
    new_stage = Stage(tmp_path_factory.mktemp("triton"), memory)
    async with new_stage.generator:
        new_stage.running = asyncio.create_task(new_stage.generator.run())
        yield new_stage
        await new_stage.leave()
    # Weights in transfer and the server's start-up files are deleted.
    assert not any(memory.iterdir())


class TestTritonEngine(OwnEngineContract):
    @pytest_asyncio.fixture(loop_scope="module")
    async def subject(self, stage: Stage) -> Subject:
        return Subject(stage.generator, stage.folder)


async def test_health_and_metrics_come_from_triton(stage: Stage) -> None:
    """Check that all requests went through one model and that the worker's metrics include the server's."""
    registry = CollectorRegistry()
    registry.register(TritonMetrics(lambda: stage.server.metrics_address))
    page = (await asyncio.to_thread(generate_latest, registry)).decode()
    assert 'nv_inference_request_success_total{model="kubealign",version="1"}' in page
    assert stage.generator.is_ready
    registry = CollectorRegistry()
    registry.register(TritonMetrics(lambda: "127.0.0.1:9"))
    assert generate_latest(registry) == b""


async def test_server_with_a_worker_rejects_another(stage: Stage) -> None:
    """Connect a second worker by address, as to an external server; the first continues."""
    address = await stage.server.start()
    with pytest.raises(EngineLost, match=r"within 1 s .*w has the engine"):
        async with stage.client(ExternalTritonServer(address), patience=1.0):
            pass
    with pytest.raises(EngineLost, match=r"127.0.0.1:9 has no model 'kubealign' that is ready"):
        async with stage.client(ExternalTritonServer("127.0.0.1:9"), patience=1.0):
            pass
    await refitted(Subject(stage.generator, stage.folder), 1)


def program_name(pid: int | None) -> str:
    """Return the name of the file that a process executes. Raises FileNotFoundError when it has ended."""
    return Path(f"/proc/{pid}/exe").readlink().name


async def test_launcher_finds_its_packages_in_the_folder(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launch with a Python that has no package installed, as in a pod that mounts a checkout."""
    monkeypatch.setattr(sys, "executable", str(Path(sys.base_prefix) / "bin" / "python3"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    async with ManagedTritonServer(
        TritonInstallation.find(), tmp_path / "server", stage.tls, START_SECONDS
    ) as server:
        await server.start()
        async with asyncio.timeout(SECONDS):
            while program_name(server.pid) != "tritonserver":  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_killed_model_loses_requests_and_returns_without_weights(stage: Stage) -> None:
    """Kill the model's process, the only failure that the server does not notice."""
    generator, subject = stage.generator, Subject(stage.generator, stage.folder)
    await refitted(subject, 1)
    before = generator.load.generated_tokens
    generation = asyncio.create_task(
        generated(generator, group("held", *range(64), max_tokens=90, min_tokens=90))
    )
    while not generator.load.running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    pid = stage.server.pid
    assert pid is not None
    (model,) = children(pid)
    os.kill(model, signal.SIGKILL)
    with pytest.raises(EngineLost):
        await generation
    async with asyncio.timeout(SECONDS):
        cause = await generator.wait_for_weight_loss()
    assert cause == "the model's process in the Triton server ended"
    with pytest.raises(EngineLost, match="started again"):
        await generated(generator, group("meanwhile", 1))
    assert not generator.is_ready
    async with asyncio.timeout(START_SECONDS), generator.paused(InFlightPolicy.DRAIN):
        # Waits for the server that is being started.
        await generator.refit(weights(2).items(), 2)
    again = group("again", 1, 2)
    check_same(await generated(generator, again), stepped(torch_engine(stage.folder, 2), again))
    assert generator.load.generated_tokens >= before
    assert generator.is_ready
    assert not alive([pid, model])


async def test_shutdown_with_open_streams_is_in_time(stage: Stage) -> None:
    """Check that requests in flight get an error and no process is left running."""
    pid = stage.server.pid
    assert pid is not None
    models = children(pid)
    assert models
    generation = asyncio.create_task(generated(stage.generator, group("held", *range(64), max_tokens=90)))
    await asyncio.sleep(0.1)
    await stage.leave()
    async with asyncio.timeout(20):
        await stage.generator.__aexit__(None, None, None)
    with pytest.raises(EngineLost):
        await generation
    assert not alive([pid, *models])


async def test_hanging_model_ends_with_its_server(stage: Stage) -> None:
    """Check that the model's process ends with a killed server, which it would otherwise wait for."""
    async with stage.server:
        await stage.server.start()
        pid = stage.server.pid
        assert pid is not None
        async with asyncio.timeout(START_SECONDS):
            while not (models := children(pid)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for model in models:
            os.kill(model, signal.SIGSTOP)
    async with asyncio.timeout(SECONDS):
        while alive([pid, *models]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
