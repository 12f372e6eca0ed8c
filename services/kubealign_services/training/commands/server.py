"""Dispatches commands from the network to all ranks of a group, through one queue in one order."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf.message import Message

from kubealign.spec.sections.training import Trainer
from kubealign.v1 import training_pb2
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.run_until_stopped import run_until_stopped
from kubealign_services.training.commands.command_executor import TrainingCore, list_shards
from kubealign_services.training.commands.command_seal import derive_command_key
from kubealign_services.training.commands.lost_rank import LostRank
from kubealign_services.training.commands.rank_group import CommandGroup

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Handler = Callable[[bytes], bytes]


def make_handler(request_type: type[Request], command: Callable[[Request], Reply]) -> Handler:
    """Wrap a command as a handler on bytes, as every rank runs it."""

    def run(payload: bytes) -> bytes:
        return command(request_type.FromString(payload)).SerializeToString()

    return run


def core_handlers(core: TrainingCore) -> dict[str, Handler]:
    """Return the commands that every trained model has."""
    return {
        "Describe": make_handler(training_pb2.DescribeRequest, core.describe),
        "Load": make_handler(training_pb2.LoadRequest, core.load),
        "TrainStep": make_handler(training_pb2.TrainStepRequest, core.train_step),
        "Evaluate": make_handler(training_pb2.EvaluateRequest, core.evaluate),
        "Forward": make_handler(training_pb2.ForwardRequest, core.forward),
        "Save": make_handler(training_pb2.SaveRequest, core.save),
        "Export": make_handler(training_pb2.ExportRequest, core.export),
    }


class CommandDispatcher:
    """Runs commands on all ranks, from rank 0. Calls queue on the single compute thread.

    Attributes:
        step: The model's current step, as far as the commands' replies state it.
    """

    def __init__(self, context: ProcessContext, group: CommandGroup, handlers: Mapping[str, Handler]) -> None:
        self._context = context
        self._group = group
        self._handlers = handlers
        self.step: int | None = None
        self._train_step_seconds: float | None = None
        self._failure = LostRank()

    async def wait_for_failure(self) -> None:
        """Wait until the group is broken and has to restart as a whole. Raises RankFailed."""
        await self._failure.wait()

    async def run(self, name: str, request: Message, reply_type: type[Reply]) -> Reply:
        """Run a command on every rank and return rank 0's reply.

        Raises what the handler raised; Unreachable when the group is broken.
        """
        started_at = time.perf_counter()
        command = partial(self._group.run, name, request.SerializeToString(), self._handlers)
        with self._failure.reporting():
            answer = await self._context.compute_named(name, command, self._context.computation_deadline)
        if name == "TrainStep":
            self._train_step_seconds = time.perf_counter() - started_at
            self._context.metrics.train_step_seconds.observe(self._train_step_seconds)
        reply = reply_type.FromString(answer)
        if isinstance(reply, training_pb2.TrainStepReply | training_pb2.TrainingState):
            self.step = reply.step
        return reply

    def heartbeat(self) -> dict[str, Any]:
        """Return the model's heartbeat fields: see docs/metrics.md."""
        fields: dict[str, Any] = {"computing": self._context.current_computation}
        if self.step is not None:
            fields |= {"step": self.step, "weight_version": self.step}
        if self._train_step_seconds is not None:
            fields["train_step_seconds"] = round(self._train_step_seconds, 3)
        return fields

    async def save(self, request: training_pb2.SaveRequest) -> training_pb2.SaveReply:
        """Save on every rank, then list the written files."""
        await self.run("Save", request, training_pb2.SaveReply)
        shards = await self._context.compute(list_shards, Path(request.directory))
        return training_pb2.SaveReply(shards=shards)

    async def export(self, request: training_pb2.ExportRequest) -> training_pb2.ExportReply:
        await self.run("Export", request, training_pb2.ExportReply)
        files = await self._context.compute(list_shards, Path(request.directory))
        return training_pb2.ExportReply(files=files)


async def serve_group(
    context: ProcessContext,
    spec: Trainer,
    handlers: Mapping[str, Handler],
    servicer: Callable[[CommandDispatcher], object],
    rank_servicers: Sequence[object] = (),
) -> None:
    """Serve the network on rank 0 until the process is stopped; on other ranks follow rank 0's commands until
    it ends.

    Args:
        rank_servicers: Further servicers, which each rank serves at its own address.
    """
    async with open_group(context, spec.step_timeout_seconds) as group:
        if context.settings.rank > 0:
            await _follow(context, group, handlers, rank_servicers)
            return
        commander = CommandDispatcher(context, group, handlers)
        context.heartbeat.set_fields(commander.heartbeat)
        async with context.serve([servicer(commander), *rank_servicers]):
            await run_until_stopped(context.stop, commander.wait_for_failure())


@asynccontextmanager
async def open_group(context: ProcessContext, timeout: float) -> AsyncIterator[CommandGroup]:
    """Join the ranks of this process's unit; leave them at the end. Raises what `CommandGroup` raises.

    Args:
        timeout: Seconds that the ranks wait for one another.
    """
    settings = context.settings
    key = derive_command_key(settings.tls) if settings.world_size > 1 else b""
    group = CommandGroup(settings.rank, settings.world_size, settings.rendezvous, timeout, key)
    # Rendezvous and shutdown block until the other ranks have come: not on the event loop.
    await context.compute(group.__enter__)
    try:
        yield group
    except BaseException as error:
        await context.compute(group.__exit__, type(error), error, None)
        raise
    await context.compute(group.__exit__, None, None, None)


async def _follow(
    context: ProcessContext, group: CommandGroup, handlers: Mapping[str, Handler], servicers: Sequence[object]
) -> None:
    handlers = {name: context.with_deadline(name, handler) for name, handler in handlers.items()}
    if not servicers:
        context.ready = True
        await context.compute(group.follow, handlers)
        return
    async with context.serve(servicers):
        await context.compute(group.follow, handlers)
