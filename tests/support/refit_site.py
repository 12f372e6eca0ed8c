"""Four Megatron ranks (tensor 2 x pipeline 2) that publish to rollout workers with one and with two
processes."""

# mypy: disable-error-code="no-untyped-call"
import asyncio
import json
import multiprocessing as mp
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles
from kubealign.spec.sections.engines import Engine, TorchEngineSpec
from kubealign.spec.sections.rollout import RefitSpec, Rollout, WeightEncoding
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.torch_engine import engine as torch_engine
from kubealign_services.generation.torch_engine.tensor_parallel.engine_factory import create_leader_engine
from kubealign_services.generation.torch_engine.tensor_parallel.leader import ProcessesLost
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.rollout.generator import SteppedGenerator
from kubealign_services.roles.rollout.tensor_parallel import make_shard_selector
from kubealign_services.roles.rollout.weights import BASE_VERSION, read_folder_weights
from kubealign_services.runtime.process.rank_rendezvous import join_process_group
from kubealign_services.weights.announce.coordinator import RefitCoordinator
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.receive.refit_worker import RefitWorker
from kubealign_services.weights.transfer.stream.peer_streams import PeerStreams
from support.forked_ranks import RankFactory
from support.free_address import free_address
from support.refit_ranks import MEETING, RANKS, Follower, Sender, canary_tokens, order, sit

# With three special tokens the vocabulary is odd: the trainer pads it, and the engine's processes have 19 and
# 18.
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGH"
VOCABULARY = len(LETTERS) + 3
REFIT_SECONDS = 30.0


@dataclass
class Site:
    """The trainer's ranks, and the second process of each engine. announced: announcements of the trainer
    since it opened its model."""

    folder: Path
    line: Connection
    store: dist.Store
    tls: TlsFiles
    announced: list[refit_pb2.WeightsAnnouncement] = field(default_factory=list)
    version: int = -1
    _engines: int = 0
    _steps: int = 0

    def open(self, name: str, architecture: dict[str, Any], lora: bool = False) -> Path:
        """Restart the trainer with the initial weights of a model. Return the model's folder."""
        model = self.folder / name
        if not model.is_dir():
            build_model(architecture, train_character_tokenizer([LETTERS]), 1, model, "")
        self._steps = 0
        self.announced.clear()
        self._tell("Open", json.dumps({"folder": str(model), "lora": lora}).encode())
        return model

    def train(self) -> None:
        self._steps += 1
        tokens = torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(self._steps))
        batch = encode(pack(tokens.tolist(), [str(index) for index in range(4)]))
        request = training_pb2.TrainStepRequest(fence=1, step=self._steps, update=True, batch=batch)
        self._tell("TrainStep", request.SerializeToString())

    async def publish(self, fence: int, version: int) -> refit_pb2.WeightsAnnouncement:
        request = refit_pb2.PublishWeightsRequest(fence=fence, version=version).SerializeToString()
        answer = await asyncio.to_thread(self._tell, "PublishWeights", request)
        self.announced.append(refit_pb2.WeightsAnnouncement.FromString(answer))
        return self.announced[-1]

    @asynccontextmanager
    async def workers(
        self, model: Path, near: bool, encoding: WeightEncoding, base: bool
    ) -> AsyncIterator["Workers"]:
        """Run rollout workers. near: with access to the trainer's shared memory. base: load the folder's
        weights first."""
        shared = self.folder / ("shared" if near else "nowhere")
        bus = MemoryBus()
        async with AsyncExitStack() as stack:
            thread = stack.enter_context(ThreadPoolExecutor(1))
            streams = await stack.enter_async_context(PeerStreams(self.tls))
            lost: list[ProcessesLost] = []

            async def compute(call: Callable[..., Any], *arguments: Any) -> Any:
                return await asyncio.get_running_loop().run_in_executor(thread, call, *arguments)

            workers = {}
            for processes in (1, 2):
                spec = TorchEngineSpec(max_sequences=4, tensor_parallel=processes)
                rollout = Rollout(
                    engine=Engine(torch=spec),
                    refit=RefitSpec(encoding=encoding, timeout_seconds=REFIT_SECONDS),
                )
                if processes == 1:
                    engine = torch_engine.TorchRolloutEngine.create(model, spec)
                else:
                    engine, end = self._shared_engine(model, spec, order(model, rollout, shared), lost)
                    stack.callback(_after_all, thread, end)
                if base:
                    engine.refit(read_folder_weights(model), BASE_VERSION)
                receiver = WeightsReceiver(
                    shared, streams, REFIT_SECONDS, make_shard_selector(rollout.engine, 0), encoding
                )
                generator = SteppedGenerator(engine, compute)
                worker = RefitWorker(f"of-{processes}", bus, receiver, generator, REFIT_SECONDS)
                stack.push_async_callback(_ended, asyncio.create_task(worker.run()))
                workers[processes] = worker
            broadcast = RefitCoordinator(bus, self.publish, fence=1, min_replicas=2, timeout=REFIT_SECONDS)
            yield Workers(self, await stack.enter_async_context(broadcast), workers)
        await bus.close()
        assert lost == []

    def _shared_engine(
        self, model: Path, spec: TorchEngineSpec, ordered: str, lost: list[ProcessesLost]
    ) -> tuple[torch_engine.TorchRolloutEngine, Callable[[], None]]:
        number, self._engines = self._engines, self._engines + 1
        self.store.set(f"engine/{number}", ordered)
        return create_leader_engine(model, spec, dist.PrefixStore(str(number), self.store), lost.append)

    def end(self) -> None:
        """Tell the second engine process to end."""
        self.store.set(f"engine/{self._engines}", "")

    def _tell(self, name: str, payload: bytes) -> bytes:
        """Send a command to all ranks of the trainer and return rank 0's answer."""
        self.line.send((name, payload))
        if not self.line.poll(MEETING):
            raise TimeoutError(f"the trainer has not answered {name} in {MEETING:g} s")
        answer, error = self.line.recv()
        assert not error, error
        return bytes(answer)


def _after_all(thread: ThreadPoolExecutor, end: Callable[[], None]) -> None:
    """End the engine on its thread, which may still be loading the weights of a stopped worker."""
    thread.submit(end).result(MEETING)


async def _ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


@dataclass(frozen=True)
class Workers:
    """Rollout workers, by their number of processes."""

    site: Site
    broadcast: RefitCoordinator
    workers: dict[int, RefitWorker]

    async def take(self) -> dict[int, refit_pb2.RefitAcknowledgement]:
        """Publish the trainer's current weights to both workers and return their acknowledgements."""
        self.site.version += 1
        await self.broadcast.publish(self.site.version)
        acknowledgements = {}
        for processes, worker in self.workers.items():
            await worker.wait_for_version(1, self.site.version, timeout=REFIT_SECONDS)
            assert worker.last_ack is not None and worker.last_ack.weights.version == self.site.version
            acknowledgements[processes] = worker.last_ack
        return acknowledgements


@contextmanager
def opened(folder: Path, families: tuple[str, ...]) -> Iterator[Site]:
    """Start all processes once, and end them with the block. families: model types of transformers to
    import."""
    authority = CertificateAuthority.create("megatron-refit", timedelta(hours=1))
    tls = {role: write_tls(folder / role, authority, role) for role in (Role.TRAINER, Role.ROLLOUT)}
    trainers, engines = free_address(), free_address()
    ours, theirs = mp.get_context("spawn").Pipe()
    canary = canary_tokens(VOCABULARY)
    shared = folder / "shared"
    seats: list[Sender | Follower] = [
        Sender(rank, trainers, free_address(), shared, tls[Role.TRAINER], canary, None if rank else theirs)
        for rank in range(RANKS)
    ]
    seats.append(Follower(engines, tls[Role.ROLLOUT]))
    modules = ["kubealign_services.training.megatron_backend.backend", "support.refit_ranks", "peft"]
    modules += [f"transformers.models.{name}.modeling_{name}" for name in families]
    target = f"{sit.__module__}:{sit.__name__}"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with RankFactory(modules) as factory, ThreadPoolExecutor(1) as waiting:
        running = waiting.submit(factory.run, target, [(seat,) for seat in seats], 240.0)
        try:
            site = Site(folder, ours, join_process_group(0, 2, engines, MEETING), tls[Role.ROLLOUT])
            yield site
            site.end()
        finally:
            # Closing the line ends the trainer; the second engine process ends with the first.
            ours.close()
            codes = running.result()
            theirs.close()
            if dist.is_initialized():
                dist.destroy_process_group()
            torch.set_num_threads(threads)
    assert codes == [0] * len(seats)
