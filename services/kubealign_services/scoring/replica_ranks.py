"""Ranks of one scorer replica: rank 0 scores, and the others run each forward pass of its models with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from torch import Tensor

from kubealign.v1 import training_pb2
from kubealign_services.batch.codec import decode, decode_columns, encode, encode_columns
from kubealign_services.batch.packed import Batch
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.training.commands.lost_rank import LostRank
from kubealign_services.training.commands.rank_group import CommandGroup
from kubealign_services.training.commands.server import Handler, make_handler, open_group
from kubealign_services.training.contract import Head, ScoringBackend
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel


class ReplicaRanks:
    """The ranks of one replica and the models that they share. With one rank, models run without commands.

    Use `open_replica`. Every rank loads the same models in the same order.
    """

    def __init__(self, context: ProcessContext, group: CommandGroup) -> None:
        self._context = context
        self._group = group
        self._handlers: dict[str, Handler] = {}
        self._models = 0
        self._failure = LostRank()

    @property
    def is_follower(self) -> bool:
        """True on ranks above 0, which neither pull from the bus nor serve."""
        return self._context.settings.rank > 0

    def load(self, folder: Path, head: Head, microbatch_tokens: int) -> ScoringBackend:
        """Load this rank's shard of a model; runs on the compute thread.

        Returns the model of all ranks, for rank 0. Raises what `FrozenTorchModel.load` raises.
        """
        settings, backend = self._context.settings, self._context.job.spec.trainer.backend.value
        if settings.world_size == 1:
            return FrozenTorchModel.load(folder, head, backend.precision, microbatch_tokens)
        model = FrozenTorchModel.load(
            folder, head, backend.precision, microbatch_tokens, settings.rank, settings.world_size
        )
        index = self._models
        self._models += 1
        self._handlers |= _model_handlers(index, model)
        return ReplicaModel(self, index, model)

    def run(self, name: str, payload: bytes) -> bytes:
        """Run a command on all ranks and return rank 0's reply; for rank 0, on the compute thread.

        Raises what the handler raises on all ranks; Unreachable when a rank is lost, which ends the replica.
        """
        with self._failure.reporting():
            return self._group.run(name, payload, self._handlers)

    async def follow(self) -> None:
        """Run rank 0's passes until it ends; for other ranks. Raises GroupLost when rank 0 vanishes."""
        self._context.ready = True
        handlers = {
            name: self._context.with_deadline(name, handler) for name, handler in self._handlers.items()
        }
        await self._context.compute(self._group.follow, handlers)

    async def wait_for_failure(self) -> None:
        """Wait until a rank is lost and the replica has to restart. Raises RankFailed."""
        await self._failure.wait()


class ReplicaModel:
    """A `ScoringBackend` on rank 0 whose passes run on all ranks of the replica.

    Args:
        index: Position among the replica's models.
        shard: Rank 0's own shard.
    """

    def __init__(self, ranks: ReplicaRanks, index: int, shard: FrozenTorchModel) -> None:
        self._ranks = ranks
        self._index = index
        self._shard = shard

    @property
    def pooling(self) -> HeadPooling | None:
        """See FrozenBackend."""
        return self._shard.pooling

    @property
    def scores(self) -> tuple[str, ...]:
        """See FrozenBackend."""
        return self._shard.scores

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See FrozenBackend. Raises what the pass raises, and what `ReplicaRanks.run` raises."""
        request = training_pb2.ForwardRequest(batch=encode(batch), outputs=sorted(outputs))
        return self._run("Forward", request.SerializeToString())

    def topk_logprobs(self, batch: Batch, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """See ScoringBackend. Raises as `forward`."""
        request = training_pb2.TopLogprobsRequest(batch=encode(batch), count=count, vocabulary=vocabulary)
        columns = self._run("TopLogprobs", request.SerializeToString())
        return columns["tokens"], columns["logprobs"]

    def offload(self) -> None:
        """Keep the weights: a model in processes of its own shares its devices with no other model."""

    def _run(self, command: str, payload: bytes) -> dict[str, Tensor]:
        answer = self._ranks.run(_command_name(command, self._index), payload)
        reply = training_pb2.ForwardReply.FromString(answer)
        return decode_columns(reply.columns, reply.digest)


def _model_handlers(index: int, model: FrozenTorchModel) -> dict[str, Handler]:
    """Return the commands of one model, as every rank runs them."""

    def forward(request: training_pb2.ForwardRequest) -> training_pb2.ForwardReply:
        return _reply(model.forward(decode(request.batch), frozenset(request.outputs)))

    def topk_logprobs(request: training_pb2.TopLogprobsRequest) -> training_pb2.ForwardReply:
        tokens, logprobs = model.topk_logprobs(decode(request.batch), request.count, request.vocabulary)
        return _reply({"tokens": tokens, "logprobs": logprobs})

    return {
        _command_name("Forward", index): make_handler(training_pb2.ForwardRequest, forward),
        _command_name("TopLogprobs", index): make_handler(training_pb2.TopLogprobsRequest, topk_logprobs),
    }


def _command_name(command: str, index: int) -> str:
    return f"{command}/{index}"


def _reply(columns: dict[str, Tensor]) -> training_pb2.ForwardReply:
    blob, digest = encode_columns(columns)
    return training_pb2.ForwardReply(columns=blob, digest=digest)


@asynccontextmanager
async def open_replica(context: ProcessContext) -> AsyncIterator[ReplicaRanks]:
    """Join the ranks of this process's replica; leave them at the end.

    Raises GroupLost when the other ranks do not come within `trainer.stepTimeoutSeconds`, OSError when the
    port of rank 0 is in use.
    """
    async with open_group(context, context.job.spec.trainer.step_timeout_seconds) as group:
        yield ReplicaRanks(context, group)
