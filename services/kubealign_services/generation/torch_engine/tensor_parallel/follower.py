"""Worker loop of the other processes of a model: executes the commands of the leader until shutdown."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from kubealign_services.generation.torch_engine.tensor_parallel.batches import batch_of
from kubealign_services.generation.torch_engine.tensor_parallel.orders import Following, Order, Received
from kubealign_services.generation.torch_engine.tensor_parallel.sliced_passes import SlicedPasses
from kubealign_services.group.rendezvous import GroupLost

log = logging.getLogger(__name__)


@torch.inference_mode()
def follow(following: Following, passes: SlicedPasses, fetch: Callable[[bytes], None]) -> None:
    """Execute commands until END.

    Raises GroupLost when the leader disappears; every other error fails the whole group.

    Args:
        fetch: Fetches and copies this process's weight slices for a serialised announcement; its errors
            are reported to the leader, which decides.
    """
    handlers = _handlers(passes, fetch)
    while True:
        try:
            order, numbers = following.next()
        except RuntimeError as error:
            raise GroupLost(f"the first process of this rollout worker is gone: {error}") from error
        if order is Order.END:
            return
        handlers[order](numbers)


def _handlers(
    passes: SlicedPasses, fetch: Callable[[bytes], None]
) -> Mapping[Order, Callable[[Received], Any]]:
    return {
        Order.RESERVE: lambda numbers: passes.reserve(int(numbers[0])),
        Order.RUN: lambda numbers: passes.run(batch_of(numbers)),
        Order.COPY: lambda numbers: passes.copy(*_halves(numbers.tolist())),
        Order.SCORE: lambda numbers: passes.score(numbers.tolist()),
        Order.WEIGHT: lambda numbers: passes.receive_weight(passes.names[int(numbers[0])]),
        Order.FETCH: lambda numbers: _fetch(passes, fetch, bytes(numbers.tolist())),
        Order.ADAPTER: lambda numbers: _adapt(passes, numbers),
    }


def _halves(numbers: list[int]) -> tuple[list[int], list[int]]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]


def _fetch(passes: SlicedPasses, fetch: Callable[[bytes], None], announcement: bytes) -> None:
    outcome = ""
    try:
        fetch(announcement)
    except Exception as error:
        log.exception("this process's weight slices could not be loaded")
        outcome = f"{type(error).__name__}: {error}"
    passes.outcomes(outcome)


def _adapt(passes: SlicedPasses, numbers: Received) -> None:
    scale, shapes = json.loads(bytes(numbers.tolist()))
    parts = []
    for name, shape in shapes.items():
        part = torch.empty(shape, dtype=torch.float32, device=passes.device)
        dist.broadcast(part, src=0)
        parts.append((name, part))
    passes.adapt(parts, scale)
