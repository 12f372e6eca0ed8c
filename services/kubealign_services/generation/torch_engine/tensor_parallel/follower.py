"""What the other processes of a model do: the passes that the first one says, until it says that it is the
end."""

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from kubealign_services.generation.torch_engine.passes import Prompts
from kubealign_services.generation.torch_engine.tensor_parallel.orders import Following, Order
from kubealign_services.generation.torch_engine.tensor_parallel.sliced_passes import SlicedPasses
from kubealign_services.group.rendezvous import GroupLost

log = logging.getLogger(__name__)

Numbers = list[int]


@torch.inference_mode()
def follow(following: Following, passes: SlicedPasses, fetch: Callable[[bytes], None]) -> None:
    """fetch: a serialised announcement of weights -> this process's parts have been fetched and copied; what
    it raises is told to the first process, which decides.

    Raises GroupLost when the first process vanishes; whatever else fails here fails the whole group."""
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
) -> Mapping[Order, Callable[[Numbers], Any]]:
    return {
        Order.RESERVE: lambda numbers: passes.reserve(*numbers),
        Order.DECODE: lambda numbers: passes.decode(*_halves(numbers)),
        Order.PREFILL: lambda numbers: passes.prefill(_prompts(numbers)),
        Order.HOLD: lambda numbers: passes.hold(*numbers),
        Order.RESTORE: lambda numbers: passes.restore(*numbers),
        Order.MOVE: lambda numbers: passes.move(*_halves(numbers[1:]), numbers[0]),
        Order.SCORE: passes.score,
        Order.WEIGHT: lambda numbers: passes.receive_weight(passes.names[numbers[0]]),
        Order.FETCH: lambda numbers: _fetch(passes, fetch, bytes(numbers)),
        Order.ADAPTER: lambda numbers: _adapt(passes, numbers),
    }


def _halves(numbers: Numbers) -> tuple[Numbers, Numbers]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]


def _prompts(numbers: Numbers) -> Prompts:
    first_slot, count, *rest = numbers
    return Prompts(
        tokens=rest[2 * count :],
        lengths=rest[:count],
        samples=rest[count : 2 * count],
        first_slot=first_slot,
    )


def _fetch(passes: SlicedPasses, fetch: Callable[[bytes], None], announcement: bytes) -> None:
    outcome = ""
    try:
        fetch(announcement)
    except Exception as error:
        log.exception("this process's parts of the weights could not be taken")
        outcome = f"{type(error).__name__}: {error}"
    passes.outcomes(outcome)


def _adapt(passes: SlicedPasses, numbers: Numbers) -> None:
    scale, shapes = json.loads(bytes(numbers))
    parts = []
    for name, shape in shapes.items():
        part = torch.empty(shape, dtype=torch.float32, device=passes.device)
        dist.broadcast(part, src=0)
        parts.append((name, part))
    passes.adapt(parts, scale)
