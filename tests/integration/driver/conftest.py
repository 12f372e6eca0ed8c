"""Fixtures of driver tests over real gRPC, with a scripted trainer and rollout worker on an in-memory bus."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import NatsAccess, ProcessSettings, RedisAccess, Role
from kubealign.spec.job import AlignmentJob
from kubealign.v1 import (
    batch_pb2,
    critic_pb2_grpc,
    refit_pb2,
    rollout_pb2,
    scoring_pb2,
    trainer_pb2_grpc,
    training_pb2,
)
from kubealign_services.batch.codec import decode, encode, encode_columns
from kubealign_services.batch.packed import Batch
from kubealign_services.checkpoints.history import read_history
from kubealign_services.checkpoints.manifest import file_digest
from kubealign_services.checkpoints.store import CheckpointReader
from kubealign_services.data.prepared import DatasetReport, PreparationReport, PreparedJob, PreparedRow
from kubealign_services.messaging.memory import MemoryBus
from kubealign_services.roles.driver.attempt import run_attempt
from kubealign_services.roles.driver.main import run_job
from kubealign_services.roles.driver.metrics.progress import ProgressTracker
from kubealign_services.roles.driver.shutdown import ShutdownDeadline
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.rpc.client import Peer
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.telemetry.heartbeat import Heartbeat
from kubealign_services.telemetry.metrics import ProcessMetrics
from kubealign_services.telemetry.read_model_writer import ReadModelWriter
from kubealign_services.training.contract import ModelDiverged, NonFiniteLoss
from support.tiny_jobs import online_job

RLOO = {"rloo": {"promptsPerStep": 2, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0.0}}}}
ROWS = [PreparedRow(row=i, prompt_tokens=[i + 1], prompt_text=str(i)) for i in range(32)]
DATA = DatasetReport(
    kind="prompts",
    source="test",
    rows_read=32,
    rows_kept=32,
    dropped=0,
    truncated=0,
    unknown_tokens=0,
    longest_prompt=1,
    longest_response=0,
    longest_sequence=1,
    longest_context_bytes=10,
    columns_left_out=[],
)


class Hold:
    """Blocks the work on one number (a step or a version) until it is released."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.held = asyncio.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, number: int) -> None:
        if number == self.at:
            self.held.set()
            await self.let_go.wait()


class TrainedRole:
    """RPCs that trainer and critic share, without training. `training`, `forwarding` (values,
    log-probabilities) and `saving` block a step."""

    def __init__(self) -> None:
        self.state = training_pb2.TrainingState(world_size=1)
        self.training, self.forwarding, self.saving = Hold(), Hold(), Hold()

    async def Describe(self, request: Any, context: Any) -> training_pb2.TrainingState:
        return self.state

    async def Load(self, request: Any, context: Any) -> training_pb2.TrainingState:
        self.state.loaded = True
        self.state.step, self.state.driver_state = request.step, request.driver_state
        return self.state

    async def TrainStep(self, request: Any, context: Any) -> training_pb2.TrainStepReply:
        await self.training(request.step)
        self.state.step, self.state.driver_state = request.step, request.driver_state
        return training_pb2.TrainStepReply(step=request.step)

    async def Save(self, request: Any, context: Any) -> training_pb2.SaveReply:
        await self.saving(request.step)
        path = Path(request.directory) / f"{type(self).__name__}-shard"
        path.write_text(str(request.step))
        shard = training_pb2.Shard(name=path.name, size_bytes=path.stat().st_size, digest=file_digest(path))
        return training_pb2.SaveReply(shards=[shard])


class Trainer(TrainedRole, trainer_pb2_grpc.TrainerServicer):
    """Trainer whose `publishing` blocks a version.

    destroyed: first version whose weights have no finite log-probabilities.
    """

    def __init__(self) -> None:
        super().__init__()
        self.publishing = Hold()
        # Versions in the order of their snapshots, each with the trainer's step at that time.
        self.published: list[tuple[int, int]] = []
        self.destroyed = 1 << 30

    async def Logprobs(self, request: Any, context: Any) -> training_pb2.ForwardReply:
        await self.forwarding(self.state.step + 1)
        tokens = decode(request.batch).tokens
        columns, digest = encode_columns({"token.logprobs": torch.zeros(len(tokens))})
        return training_pb2.ForwardReply(columns=columns, digest=digest)

    async def PublishWeights(self, request: Any, context: Any) -> refit_pb2.WeightsAnnouncement:
        await self.publishing(request.version)
        if request.version >= self.destroyed:
            raise ModelDiverged(f"weights of version {request.version} are destroyed")
        self.published.append((request.version, self.state.step))
        weights = batch_pb2.WeightsId(fence=request.fence, version=request.version, digest="d")
        return refit_pb2.WeightsAnnouncement(weights=weights)

    async def Export(self, request: Any, context: Any) -> training_pb2.ExportReply:
        return training_pb2.ExportReply()


class Critic(TrainedRole, critic_pb2_grpc.CriticServicer):
    """Critic whose values are all zero.

    diverges_at: step at which its loss is not finite.
    """

    diverges_at = 1 << 30

    async def TrainStep(self, request: Any, context: Any) -> training_pb2.TrainStepReply:
        if request.step >= self.diverges_at:
            raise NonFiniteLoss("the critic's loss is not finite")
        return await super().TrainStep(request, context)

    async def Values(self, request: Any, context: Any) -> training_pb2.ForwardReply:
        await self.forwarding(self.state.step + 1)
        tokens = decode(request.batch).tokens
        columns, digest = encode_columns({"token.values": torch.zeros(len(tokens))})
        return training_pb2.ForwardReply(columns=columns, digest=digest)


class Worker:
    """Worker that generates, scores and takes weights. `generating` and `refitting` block a version."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus
        self.generating, self.refitting = Hold(), Hold()
        # Versions that are refused once.
        self.refuses: set[int] = set()
        self.announced: list[refit_pb2.WeightsAnnouncement] = []
        # Reward of a sample of a work item.
        self.reward: Callable[[rollout_pb2.WorkItem, int], float] = lambda item, sample: float(sample)

    async def take_weights(self) -> None:
        async for data in self._bus.latest("refit"):
            announcement = refit_pb2.WeightsAnnouncement.FromString(data)
            self.announced.append(announcement)
            version = announcement.weights.version
            await self.refitting(version)
            answer = refit_pb2.RefitAcknowledgement(worker="rollout-7", weights=announcement.weights)
            if version in self.refuses:
                self.refuses.remove(version)
                answer.error = "a checksum does not match"
            identity = f"{answer.weights.fence}:{answer.weights.version}:{len(self.announced)}"
            await self._bus.publish("refit-acks", answer.SerializeToString(), identity)

    async def work(self) -> None:
        while True:
            for delivery in await self._bus.pull("work", "rollout", 8, 5.0):
                item = rollout_pb2.WorkItem.FromString(delivery.data)
                await self.generating(item.min_version)
                for sample in range(item.samples):
                    await self._answer(item, sample)
                await delivery.ack()

    async def _answer(self, item: rollout_pb2.WorkItem, sample: int) -> None:
        version = item.min_version
        prompt = len(item.prompt_tokens)
        sequence = encode(
            Batch(
                tokens=torch.tensor([*item.prompt_tokens, 9], dtype=torch.int32),
                cu_seqlens=torch.tensor([0, prompt + 1], dtype=torch.int32),
                sample_ids=["?"],
                token_columns={
                    "loss_mask": torch.tensor([0] * prompt + [1], dtype=torch.uint8),
                    "behaviour_logprobs": torch.zeros(prompt + 1),
                    "engine_logprobs": torch.zeros(prompt + 1),
                    "weight_version": torch.full((prompt + 1,), version, dtype=torch.int32),
                },
            )
        )
        common = {
            "fence": item.fence,
            "group_id": item.group_id,
            "attempt": item.attempt,
            "sample": sample,
        }
        reward = self.reward(item, sample)
        score = scoring_pb2.Score(**common, digest=sequence.digest, source="letters", reward=reward)
        rollout = rollout_pb2.Rollout(
            **common, worker="rollout-7", sequence=sequence, purpose=item.purpose, columns=item.columns
        )
        name = f"{item.fence}:{item.group_id}:{item.attempt}:{sample}"
        await self._bus.publish("rollouts", rollout.SerializeToString(), name)
        await self._bus.publish("scores", score.SerializeToString(), name)


class Stage:
    """One job with its driver. A job with a critic uses `critic`.

    reached: newest reported step. metrics: those of each step. rows: report of the prepared rows.
    """

    def __init__(self, folder: Path, server: RpcServer, trainer: Trainer, critic: Critic) -> None:
        document = online_job(
            folder,
            "stopped",
            RLOO,
            maxSteps=100,
            checkpoint={"everySteps": 3},
            lifecycle={"gracePeriodSeconds": 8},
        )
        self.job = AlignmentJob.model_validate(document)
        self.trainer, self.critic = trainer, critic
        self.bus = MemoryBus()
        self.worker = Worker(self.bus.new_connection())
        self.stop = asyncio.Event()
        self.reached = 0
        self.metrics: list[dict[str, float]] = []
        self.rows = DATA
        self.fence = 1
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self._server = server
        self._folder = folder
        self._tasks = [asyncio.create_task(part) for part in (self.worker.work(), self.worker.take_weights())]

    @property
    def committed(self) -> int | None:
        """Return the step of the newest checkpoint."""
        newest = CheckpointReader(self.run_dir).latest()
        return None if newest is None else newest.manifest.step

    def history(self) -> list[str]:
        return [line.to_line().decode() for line in read_history(self.run_dir)]

    def settings(self) -> ProcessSettings:
        authority = CertificateAuthority.load(self._folder)
        return ProcessSettings(
            name="driver",
            role=Role.DRIVER,
            job=self._folder / "job.json",
            run_dir=self.run_dir,
            shared_memory=self._folder / "shm",
            tls=write_tls(self._folder / "driver-tls", authority, Role.DRIVER),
            listen="127.0.0.1:0",
            nats=NatsAccess(url="tls://127.0.0.1:1", user="-", password="-"),
            redis=RedisAccess(host="127.0.0.1", port=1, user="-", password="-", prefix="-"),
            peers={"trainer": self._server.address},
            termination=self._folder / "termination",
        )

    def context(self) -> ProcessContext:
        settings = self.settings()
        read_model = ReadModelWriter(settings.redis)
        return ProcessContext(
            settings=settings,
            job=self.job,
            logger=logging.getLogger("driver"),
            stop=self.stop,
            metrics=ProcessMetrics(self.job.name, settings.role, settings.name),
            read_model=read_model,
            heartbeat=Heartbeat(read_model, settings.name, settings.role),
        )

    async def drive(self) -> None:
        """Run one attempt. Raises the error that ends it."""
        context = self.context()
        prepared = PreparedJob(
            self._folder,
            {},
            PreparationReport(context=None, train=self.rows, validation=None),
            ROWS,
            None,  # type: ignore[arg-type]
        )
        self.progress = progress = ProgressTracker(self.job.spec.max_steps, context.read_model)
        grace = ShutdownDeadline(self.stop, self.job.spec.lifecycle.grace_period_seconds)
        settings = context.settings
        async with Peer(
            "trainer", settings.peers["trainer"], settings.tls, trainer_pb2_grpc.TrainerStub
        ) as peer:
            if self.job.spec.critic is None:
                await run_attempt(
                    context, prepared, self.bus, peer, None, self.fence, [self], progress, grace
                )
                return
            async with Peer(
                "critic", self._server.address, settings.tls, critic_pb2_grpc.CriticStub
            ) as critic:
                await run_attempt(
                    context, prepared, self.bus, peer, critic, self.fence, [self], progress, grace
                )

    def step(self, step: int, fence: int, metrics: Any) -> None:
        self.reached = step
        self.metrics.append({"step": step, **metrics})

    def samples(self, step: int, fence: int, samples: Any) -> None:
        return

    def validation_samples(self, step: int, fence: int, samples: Any) -> None:
        return

    async def drive_to_end(self, trainer_address: str) -> None:
        """Run attempts until the job ends. Raises the error that ends it."""
        prepared = self.run_dir / "prepared"
        prepared.mkdir()
        report = PreparationReport(context=None, train=DATA, validation=None)
        (prepared / "report.json").write_text(report.model_dump_json())
        (prepared / "models.json").write_text("{}")
        context = self.context()
        progress = ProgressTracker(self.job.spec.max_steps, context.read_model)
        grace = ShutdownDeadline(self.stop, self.job.spec.lifecycle.grace_period_seconds)
        tls = context.settings.tls
        async with Peer("trainer", trainer_address, tls, trainer_pb2_grpc.TrainerStub) as peer:
            await run_job(context, self.bus, peer, None, progress, grace)

    def begin(self) -> "asyncio.Task[None]":
        """Start a driver that runs until its job or the test ends."""
        driving = asyncio.create_task(self.drive())
        self._tasks.append(driving)
        return driving

    async def close(self) -> None:
        await self.bus.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    authority = CertificateAuthority.create("stopped", timedelta(hours=1))
    authority.save(tmp_path)
    trainer, critic = Trainer(), Critic()
    tls = write_tls(tmp_path / "trainer-tls", authority, Role.TRAINER)
    async with RpcServer("127.0.0.1:0", tls, [trainer, critic], lambda *_: None, grace=0.5) as server:
        await server.set_serving(True)
        new_stage = Stage(tmp_path, server, trainer, critic)
        try:
            yield new_stage
        finally:
            await new_stage.close()
