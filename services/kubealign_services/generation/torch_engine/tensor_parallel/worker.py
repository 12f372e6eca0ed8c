"""Worker loop of the other processes of a model: executes the commands of the leader until shutdown."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from kubealign_services.generation.torch_engine.tensor_parallel.commands import (
    Command,
    CommandReceiver,
    ReceivedNumbers,
    decode_batch,
)
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_runner import ShardedModelRunner
from kubealign_services.runtime.process.rank_rendezvous import GroupLost

log = logging.getLogger(__name__)


@torch.inference_mode()
def run_worker(commands: CommandReceiver, runner: ShardedModelRunner, fetch: Callable[[bytes], None]) -> None:
    """Execute commands until END.

    Raises GroupLost when the leader disappears; every other error fails the whole group.

    Args:
        fetch: Fetches and copies this process's weight slices for a serialised announcement; its errors
            are reported to the leader, which decides.
    """
    handlers = _handlers(runner, fetch)
    while True:
        try:
            command, numbers = commands.receive()
        except RuntimeError as error:
            raise GroupLost(f"the first process of this rollout worker is gone: {error}") from error
        if command is Command.END:
            return
        handlers[command](numbers)


def _handlers(
    runner: ShardedModelRunner, fetch: Callable[[bytes], None]
) -> Mapping[Command, Callable[[ReceivedNumbers], Any]]:
    return {
        Command.RESERVE: lambda numbers: runner.reserve(int(numbers[0])),
        Command.RUN: lambda numbers: runner.forward(decode_batch(numbers)),
        Command.COPY: lambda numbers: runner.copy_pages(*_halves(numbers.tolist())),
        Command.SCORE: lambda numbers: runner.forward_sequence(numbers.tolist()),
        Command.WEIGHT: lambda numbers: runner.receive_weight(runner.names[int(numbers[0])]),
        Command.FETCH: lambda numbers: _fetch_weights(runner, fetch, bytes(numbers.tolist())),
        Command.ADAPTER: lambda numbers: _receive_adapter(runner, numbers),
    }


def _halves(numbers: list[int]) -> tuple[list[int], list[int]]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]


def _fetch_weights(runner: ShardedModelRunner, fetch: Callable[[bytes], None], announcement: bytes) -> None:
    outcome = ""
    try:
        fetch(announcement)
    except Exception as error:
        log.exception("this process's weight slices could not be loaded")
        outcome = f"{type(error).__name__}: {error}"
    runner.gather_outcomes(outcome)


def _receive_adapter(runner: ShardedModelRunner, numbers: ReceivedNumbers) -> None:
    scale, shapes = json.loads(bytes(numbers.tolist()))
    parts = []
    for name, shape in shapes.items():
        part = torch.empty(shape, dtype=torch.float32, device=runner.device)
        dist.broadcast(part, src=0)
        parts.append((name, part))
    runner.load_adapter(parts, scale)
