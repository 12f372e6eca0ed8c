"""Rank processes of a refit from one layout into another: the ranks of a Megatron trainer, which publish, and
the second rank of a tensor-parallel engine."""

# mypy: disable-error-code="no-untyped-call"
import asyncio
import json
import logging
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from kubealign.process_settings import TlsFiles
from kubealign.spec.sections.megatron import MegatronBackendSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import Rollout, WeightEncoding, WeightTransport
from kubealign.spec.sections.training import AdamW, Backend, Lora, Optimizer, Trainer
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.generation.torch_engine.tensor_parallel.engine_factory import create_worker_runner
from kubealign_services.generation.torch_engine.tensor_parallel.worker import run_worker
from kubealign_services.roles.rollout.tensor_parallel import open_shard_fetcher
from kubealign_services.roles.trainer.weight_publication import PublishWeightsCommand
from kubealign_services.runtime.process.rank_rendezvous import join_process_group
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.training.backends import create_backend
from kubealign_services.training.commands.command_executor import StepPlan, TrainingCore
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.commands.server import make_handler
from kubealign_services.training.contract import Head
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.send.servicer import WeightsSenderServicer
from kubealign_services.weights.verify.canary import Canary
from support.command_key import COMMAND_KEY
from support.mean_negative_logprob import MeanNegativeLogprob

log = logging.getLogger(__name__)

RANKS = 4
#: Timeout of the rendezvous in seconds.
MEETING = 120.0
BACKEND = Backend(megatron=MegatronBackendSpec(microbatch_tokens=64, tensor_parallel=2, pipeline_parallel=2))


@dataclass(frozen=True)
class Sender:
    """A rank of the trainer. line: receives the commands for all ranks on rank 0; None for the others."""

    rank: int
    rendezvous: str
    address: str
    shared: Path
    tls: TlsFiles
    canary: tuple[int, ...]
    line: Connection | None

    def run(self) -> None:
        publisher = WeightsPublisher(
            self.shared, self.address, WeightTransport.AUTO, rank=self.rank, encoding=WeightEncoding.DELTA
        )
        threading.Thread(target=asyncio.run, args=(self._serve(publisher),), daemon=True).start()
        handlers = _Published(self, publisher).handlers()
        with CommandGroup(self.rank, RANKS, self.rendezvous, MEETING, COMMAND_KEY) as group:
            if self.line is None:
                group.follow(handlers)
            else:
                _lead(group, handlers, self.line)
        publisher.close()

    async def _serve(self, publisher: WeightsPublisher) -> None:
        servicers = [WeightsSenderServicer(publisher)]
        async with RpcServer(self.address, self.tls, servicers, lambda *_: None, grace=1.0):
            await asyncio.Event().wait()


def _lead(group: CommandGroup, handlers: Handlers, line: Connection) -> None:
    """Run commands on all ranks until the other end of the line is closed."""
    while True:
        try:
            name, payload = line.recv()
        except EOFError:
            return
        try:
            line.send((group.run(name, payload, handlers), ""))
        except Exception as error:
            log.exception("a command failed", extra={"command": name})
            line.send((b"", f"{type(error).__name__}: {error}"))


class _Published:
    """Command handlers of a rank. The ranks train one model after another, and publish with one publisher."""

    def __init__(self, seat: Sender, publisher: WeightsPublisher) -> None:
        self._seat = seat
        self._publisher = publisher
        self._canary = Canary(seat.canary, 1e-3)
        self._made: list[tuple[TrainingCore, PublishWeightsCommand]] = []

    def handlers(self) -> Handlers:
        return {
            "Open": self._open,
            "TrainStep": make_handler(
                training_pb2.TrainStepRequest, lambda request: self._core.train_step(request)
            ),
            "PublishWeights": make_handler(
                refit_pb2.PublishWeightsRequest, lambda request: self._made[0][1](request)
            ),
        }

    @property
    def _core(self) -> TrainingCore:
        return self._made[0][0]

    def _open(self, payload: bytes) -> bytes:
        """Load the model of a folder, with or without an adapter."""
        model = json.loads(payload)
        spec = Trainer(
            ranks=RANKS,
            backend=BACKEND,
            optimizer=Optimizer(adam_w=AdamW(learning_rate=2e-2)),
            lora=Lora(rank=3, alpha=12) if model["lora"] else None,
        )
        seat = self._seat
        core = TrainingCore(
            lambda: create_backend(
                Path(model["folder"]),
                Head.LANGUAGE_MODEL,
                spec,
                99,
                rank=seat.rank,
                world_size=RANKS,
                seed=5,
            ),
            MeanNegativeLogprob(),
            StepPlan(1, None),
            seed=1,
            role="trainer",
            world_size=RANKS,
        )
        core.load(training_pb2.LoadRequest(fence=1))
        publish = PublishWeightsCommand(core, self._canary, self._publisher, seat.rank, RANKS)
        self._made[:] = [(core, publish)]
        return b""


@dataclass(frozen=True)
class Follower:
    """The second process of an engine. It creates the engines that the first process requests in the group's
    store, one after the other: `engine/N` is the `order` of an engine, or empty at the end."""

    rendezvous: str
    tls: TlsFiles

    def run(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        store = join_process_group(1, 2, self.rendezvous, MEETING)
        number = 0
        while payload := await asyncio.to_thread(store.get, f"engine/{number}"):
            ordered = json.loads(payload)
            rollout = Rollout.model_validate(ordered["rollout"])
            assert rollout.engine.torch is not None
            following, passes = create_worker_runner(
                Path(ordered["folder"]), rollout.engine.torch, 1, dist.PrefixStore(str(number), store)
            )
            settings = SimpleNamespace(
                name="follower",
                tls=self.tls,
                rank=1,
                shared_memory=Path(ordered["shared"]),
                listen=None,
                advertise=None,
            )
            context: Any = SimpleNamespace(
                settings=settings, job=SimpleNamespace(spec=SimpleNamespace(rollout=rollout))
            )
            async with open_shard_fetcher(context, passes) as fetch:
                await asyncio.to_thread(run_worker, following, passes, fetch)
            number += 1
        dist.destroy_process_group()


def order(folder: Path, rollout: Rollout, shared: Path) -> str:
    """Return a request to a Follower: an engine for the folder's model that reads snapshots in `shared`."""
    return json.dumps(
        {"folder": str(folder), "rollout": rollout.model_dump(mode="json"), "shared": str(shared)}
    )


def sit(seat: Sender | Follower) -> None:
    """Run a process from its start to its end."""
    torch.set_num_threads(1)
    seat.run()


def canary_tokens(vocabulary: int) -> tuple[int, ...]:
    """Return canary tokens, enough to include most of the vocabulary."""
    return tuple(Canary.choose(1, vocabulary, [Precision.FLOAT32], length=48).tokens)
