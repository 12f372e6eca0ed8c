"""Executes the driver's commands on one trained model: fences, exactly-once steps, and the effect of each
command. Contains no transport.

Every rank of a group runs the same commands in the same order (`commands.rank_group`), so the state below is
the same on all ranks. A `TrainStep` repeated under the same fence is answered with the stored reply; a
command of an older fence is refused, since its sender has been replaced.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import xxhash

from kubealign.v1 import batch_pb2, training_pb2
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.codec import decode, encode_columns
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.checkpoints.manifest import describe_shards
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.rpc.errors import OutOfOrder
from kubealign_services.training.contract import ForwardCachingBackend, TrainingBackend, UpdatePlan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepPlan:
    """Division of this model's TrainSteps into optimiser steps. minibatch_sequences: None for the whole
    batch.
    """

    epochs: int
    minibatch_sequences: int | None

    @property
    def is_single_update(self) -> bool:
        """True when a TrainStep is one optimiser step."""
        return self.epochs == 1 and self.minibatch_sequences is None


class TrainingCore:
    """State and commands of a model in training."""

    def __init__(
        self,
        create: Callable[[], TrainingBackend],
        objective: Objective,
        plan: StepPlan,
        seed: int,
        role: str,
        world_size: int,
    ) -> None:
        """Configure the core without loading weights.

        Args:
            create: Creates the model with its first weights.
            seed: Seed of the job; together with `role` it seeds this model's randomness.
            role: Name of the role, for error messages and seeding.
        """
        self._create_backend = create
        self._objective = objective
        self._plan = plan
        self._seed = seed
        self._role = role
        self._world_size = world_size
        self._backend: TrainingBackend | None = None
        self._fence = 0
        self._step = 0
        self._driver_state = b""
        self._driver_metrics = batch_pb2.Metrics()
        self._last_reply: tuple[int, training_pb2.TrainStepReply] | None = None

    @property
    def backend(self) -> TrainingBackend:
        """The model. Raises OutOfOrder before the first Load."""
        if self._backend is None:
            raise OutOfOrder(f"the {self._role} has no weights: it has restarted and waits for Load")
        return self._backend

    def describe(self, request: training_pb2.DescribeRequest) -> training_pb2.TrainingState:
        """Return the progress of this model.

        From here on, commands of older fences are refused, queued ones too.
        """
        self.check_fence(request.fence)
        return self._state()

    def _state(self) -> training_pb2.TrainingState:
        return training_pb2.TrainingState(
            fence=self._fence,
            loaded=self._backend is not None,
            step=self._step,
            driver_state=self._driver_state,
            world_size=self._world_size,
            driver_metrics=self._driver_metrics,
            metrics=None if self._last_reply is None else self._last_reply[1].metrics,
        )

    def check_fence(self, fence: int) -> None:
        """Raise StaleFence for a number below the highest seen; remember a higher one."""
        if fence < self._fence:
            raise StaleFence(
                f"fence {fence} has been replaced by {self._fence}: another driver commands this {self._role}"
            )
        self._fence = fence

    def load(self, request: training_pb2.LoadRequest) -> training_pb2.TrainingState:
        """Load the first weights or those of a checkpoint."""
        self.check_fence(request.fence)
        self._backend = None
        self._last_reply = None
        failpoint(Failpoint.TRAINER_BEFORE_LOAD)
        backend = self._create_backend()
        if request.directory:
            backend.load(Path(request.directory))
        self._backend = backend
        self._step = request.step
        self._driver_state = request.driver_state
        self._driver_metrics = batch_pb2.Metrics()
        log.info(
            "weights loaded", extra={"step": request.step, "directory": request.directory or "first weights"}
        )
        return self._state()

    def train_step(self, request: training_pb2.TrainStepRequest) -> training_pb2.TrainStepReply:
        """Execute one step exactly once.

        Raises StaleFence, OutOfOrder (no weights, or not the next step), NonFiniteLoss, CorruptBatch.
        """
        self.check_fence(request.fence)
        if (
            self._last_reply is not None
            and self._last_reply[0] == request.fence
            and self._step == request.step
        ):
            return self._last_reply[1]
        backend = self.backend
        if request.step != self._step + 1:
            raise OutOfOrder(
                f"step {request.step} was requested of a {self._role} that is at step {self._step}: "
                f"the next is {self._step + 1}"
            )
        failpoint(Failpoint.TRAINER_BEFORE_STEP)
        reply = training_pb2.TrainStepReply(step=request.step)
        if request.update:
            batch = decode(request.batch)
            plan = UpdatePlan(
                epochs=self._plan.epochs,
                minibatch_sequences=self._plan.minibatch_sequences or len(batch),
                seed=xxhash.xxh3_64_intdigest(f"{self._seed}:{self._role}:{request.step}".encode()) >> 1,
            )
            reply.metrics.values.update(backend.train_step(batch, self._objective, plan))
        self._step = request.step
        self._driver_state = request.driver_state
        self._driver_metrics = request.driver_metrics
        self._last_reply = (request.fence, reply)
        failpoint(Failpoint.TRAINER_AFTER_STEP)
        return reply

    def evaluate(self, request: training_pb2.EvaluateRequest) -> training_pb2.EvaluateReply:
        self.check_fence(request.fence)
        metrics = self.backend.evaluate(decode(request.batch), self._objective)
        return training_pb2.EvaluateReply(metrics=batch_pb2.Metrics(values=metrics))

    def forward(self, request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        self.check_fence(request.fence)
        backend, batch, outputs = self.backend, decode(request.batch), frozenset(request.outputs)
        if request.learned and self._plan.is_single_update and isinstance(backend, ForwardCachingBackend):
            columns = backend.forward_and_cache(batch, outputs, self._objective)
        else:
            columns = backend.forward(batch, outputs)
        blob, digest = encode_columns({f"token.{name}": column for name, column in columns.items()})
        return training_pb2.ForwardReply(columns=blob, digest=digest)

    def save(self, request: training_pb2.SaveRequest) -> training_pb2.SaveReply:
        """Write this rank's shards.

        The reply of the whole group names every file of this role in the folder.
        """
        self.check_fence(request.fence)
        if request.step != self._step:
            raise OutOfOrder(f"step {request.step} cannot be saved: the {self._role} is at step {self._step}")
        failpoint(Failpoint.TRAINER_BEFORE_SAVE)
        self.backend.save(Path(request.directory))
        failpoint(Failpoint.TRAINER_AFTER_SAVE)
        return training_pb2.SaveReply()

    def export(self, request: training_pb2.ExportRequest) -> training_pb2.ExportReply:
        self.check_fence(request.fence)
        failpoint(Failpoint.TRAINER_BEFORE_EXPORT)
        self.backend.export(Path(request.directory))
        failpoint(Failpoint.TRAINER_AFTER_EXPORT)
        return training_pb2.ExportReply()


def list_shards(directory: Path) -> list[training_pb2.Shard]:
    """List the files of a folder with sizes and digests, once every rank has written its part."""
    return [
        training_pb2.Shard(name=shard.name, size_bytes=shard.size_bytes, digest=shard.digest)
        for shard in describe_shards(directory)
    ]
