"""Measures the refit over shared memory against one memcpy of the same bytes in the same run.

    python -m tests.bench.refit_speed [--gib 1] [--repeats 5]

The publisher, receiver and engine weights are real and share one process, so that all use the same cores. The
module is shaped like a language model: the same matrices in every block, a larger embedding and head.
"""

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from kubealign.spec.sections.rollout import WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.generation.torch_engine.model.weight_loader import WeightLoader
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.announcement import build_announcement
from kubealign_services.weights.receive.receiver import WeightsReceiver, WeightsTransfer
from kubealign_services.weights.send.publisher import WeightsPublisher

_SHARED_MEMORY = Path("/dev/shm")
_TIMEOUT = 60.0
# The first two versions fill fresh memory; the third and fourth are the first to reuse it.
_WARM = 4


class Block(nn.Module):
    """The nine tensors of a Llama block."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, narrow = 5 * width // 2, width // 4

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, dtype=dtype)

        self.q, self.k, self.v = linear(width, width), linear(width, narrow), linear(width, narrow)
        self.o, self.gate, self.up = linear(width, width), linear(width, hidden), linear(width, hidden)
        self.down = linear(hidden, width)
        self.first, self.second = (nn.RMSNorm(width, dtype=dtype) for _ in range(2))


def model(size_bytes: int, dtype: torch.dtype, blocks: int = 22) -> nn.Module:
    """Return a module of 9 x blocks + 2 tensors with about `size_bytes` bytes in all."""
    # Ten squares of the width in each block, and two of eight each around them.
    width = int((size_bytes / dtype.itemsize / (10 * blocks + 16)) ** 0.5) // 64 * 64
    with torch.device("meta"):
        module = nn.Module()
        module.embed = nn.Embedding(8 * width, width, dtype=dtype)
        module.blocks = nn.ModuleList(Block(width, dtype) for _ in range(blocks))
        module.head = nn.Linear(width, 8 * width, bias=False, dtype=dtype)
    module.requires_grad_(False).to_empty(device="cpu")
    for index, weight in enumerate(module.parameters()):
        weight.fill_(0.01 * index).view(-1)[::61] = 1.0
    return module


class Sender:
    """The trainer's side of the refit. masters: precision of the trainer's weights."""

    def __init__(self, folder: Path, module: nn.Module, masters: torch.dtype) -> None:
        self.publisher = WeightsPublisher(folder, None, WeightTransport.SHARED_MEMORY)
        self._dtype = next(module.parameters()).dtype
        self.weights = {name: weight.to(masters, copy=True) for name, weight in module.state_dict().items()}
        self._version = 0

    def publish(self) -> refit_pb2.WeightsAnnouncement:
        part = self.publisher.write(self._slices())
        self._version += 1
        announcement = build_announcement(
            [part], fence=1, version=self._version, canary=refit_pb2.Canary(tokens=[1], tolerance=1.0)
        )
        self.publisher.seal(announcement.weights)
        return announcement

    def _slices(self) -> Iterator[WeightSlice]:
        for name, weight in self.weights.items():
            yield WeightSlice(name, tuple(weight.shape), (0,) * weight.dim(), weight, self._dtype)


async def no_stream(
    address: str, request: refit_pb2.FetchWeightsRequest, timeout: float
) -> AsyncGenerator[refit_pb2.WeightsChunk]:
    raise ConnectionError("all is in shared memory")
    yield


class Clock:
    """Best seconds of repeated measurements: `best` of the wall clock, `spent` of processor time."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}
        self.spent: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        begun, at_first = time.perf_counter(), time.process_time()
        yield
        spent, seconds = time.process_time() - at_first, time.perf_counter() - begun
        self.best[name] = min(self.best.get(name, float("inf")), seconds)
        self.spent[name] = min(self.spent.get(name, float("inf")), spent)


def measure(
    size_bytes: int = 1 << 30,
    dtype: torch.dtype = torch.bfloat16,
    masters: torch.dtype | None = None,
    repeats: int = 5,
) -> dict[str, float]:
    """Return the best seconds of `repeats` refits, by phase, and totals in multiples of a memcpy.

    Phases: memcpy (tensor by tensor, with one thread or all, whichever is faster); publish (copy in,
    checksum); fetch (map, lock); adopt (load the mapped tensors into the engine); proof (the remaining time
    of the receiver's checksums); copy (fetch into an engine that copies, with concurrent checksums). Totals
    in memcpys: adopting, until the engine can compute; proven, until its output may be handed out; copying,
    the same for an engine that copies. The *_processor totals count all processor time, relative to a memcpy
    of one thread. gib: size of the weights.

    Args:
        masters: Precision of the trainer's weights; None: dtype.
    """
    source, engine = (model(size_bytes, dtype) for _ in range(2))
    own = {name: torch.zeros_like(weight) for name, weight in source.state_dict().items()}
    clock = Clock()
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
        sender = Sender(Path(folder), source, masters or dtype)
        asyncio.run(_versions(sender, engine, own, dict(source.state_dict()), Path(folder), clock, repeats))
        sender.publisher.close()
    figures = dict(clock.best)
    figures["memcpy"] = min(figures.pop("memcpy_one"), figures.pop("memcpy_all"))
    figures["gib"] = sum(weight.nbytes for weight in own.values()) / 2**30
    spent = clock.spent | {"memcpy": clock.spent["memcpy_one"]}
    adopting, proven = ("publish", "fetch", "adopt"), ("publish", "fetch", "adopt", "proof")
    figures |= {
        "adopting": _memcpys(figures, *adopting),
        "proven": _memcpys(figures, *proven),
        "adopting_processor": _memcpys(spent, *proven),
        "copying": _memcpys(figures, "publish", "copy"),
        "copying_processor": _memcpys(spent, "publish", "copy"),
    }
    return figures


def _memcpys(seconds: dict[str, float], *parts: str) -> float:
    return sum(seconds[part] for part in parts) / seconds["memcpy"]


async def _versions(
    sender: Sender,
    engine: nn.Module,
    own: dict[str, Tensor],
    source: dict[str, Tensor],
    folder: Path,
    clock: Clock,
    repeats: int,
) -> None:
    receiver = WeightsReceiver(folder, no_stream, _TIMEOUT)
    weights = WeightLoader(engine)
    for version in range(_WARM + repeats):
        warm = clock if version >= _WARM else Clock()
        with warm.timed("memcpy_all"):
            for name, weight in source.items():
                own[name].copy_(weight)
        with warm.timed("memcpy_one"):
            for name, weight in source.items():
                np.copyto(own[name].view(torch.uint8).numpy(), weight.view(torch.uint8).numpy())
        with warm.timed("publish"):
            announcement = sender.publish()
        with warm.timed("fetch"):
            fetching = receiver.fetch_before_verification(announcement)
            transfer: WeightsTransfer = await fetching.__aenter__()
        with warm.timed("adopt"):
            weights.load(transfer.tensors)
        with warm.timed("proof"):
            await transfer.verification
        await fetching.__aexit__(None, None, None)
        with warm.timed("copy"):
            async with receiver.fetch_before_verification(announcement) as copied:
                for name, tensor in copied.tensors:
                    own[name].copy_(tensor)
                await copied.verification
        name, weight = next(iter(sender.weights.items()))
        if not torch.equal(engine.state_dict()[name], weight.to(own[name].dtype)):
            raise AssertionError(f"{name} is not what was sent")


def sender_seconds(
    size_bytes: int = 256 << 20, receivers: tuple[int, ...] = (1, 8), versions: int = 6
) -> dict[int, float]:
    """Return the sender's processor seconds per version, by number of receivers, each its own process."""
    seconds = {}
    for count in receivers:
        source = model(size_bytes, torch.bfloat16)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_SHARED_MEMORY)))
            wires = [stack.enter_context(_receiving(folder, size_bytes)) for _ in range(count)]
            sender = Sender(folder, source, torch.bfloat16)
            stack.callback(sender.publisher.close)
            spent = []
            for _ in range(_WARM + versions):
                begun = time.process_time()
                data = sender.publish().SerializeToString()
                for wire in wires:
                    wire.send_bytes(data)
                for wire in wires:
                    if not wire.poll(_TIMEOUT) or wire.recv_bytes() != b"ready":
                        raise AssertionError("a receiver is not ready")
                spent.append(time.process_time() - begun)
            for wire in wires:
                wire.send_bytes(b"")
        seconds[count] = sorted(spent[_WARM:])[versions // 2]
    return seconds


@contextmanager
def _receiving(folder: Path, size_bytes: int) -> Iterator[Connection]:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=_receive, args=(theirs, folder, size_bytes), daemon=True)
    process.start()
    theirs.close()
    try:
        yield mine
    finally:
        mine.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _receive(wire: Connection, folder: Path, size_bytes: int) -> None:
    torch.set_num_threads(1)
    engine = model(size_bytes, torch.bfloat16)

    async def take() -> None:
        receiver, weights = WeightsReceiver(folder, no_stream, _TIMEOUT), WeightLoader(engine)
        while True:
            data = wire.recv_bytes()
            if not data:
                return
            announcement = refit_pb2.WeightsAnnouncement.FromString(data)
            async with receiver.fetch(announcement) as transfer:
                weights.load(transfer.tensors)
            wire.send_bytes(b"ready")

    asyncio.run(take())


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args(argv)
    size = int(arguments.gib * 2**30)
    print(
        "| weights | memcpy ms | publish | fetch | adopt | proof | adopting | proven (processor) "
        "| copying (processor) |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, dtype, masters in (
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("fp32", torch.float32, torch.float32),
        ("bf16 of fp32 masters", torch.bfloat16, torch.float32),
    ):
        m = measure(size, dtype, masters, arguments.repeats)
        parts = ("publish", "fetch", "adopt", "proof")
        ratios = " | ".join(f"{m[part] / m['memcpy']:.2f}" for part in parts)
        print(
            f"| {name}, {m['gib']:.2f} GiB | {1e3 * m['memcpy']:.0f} | {ratios} "
            f"| {m['adopting']:.2f} | {m['proven']:.2f} ({m['adopting_processor']:.2f}) "
            f"| {m['copying']:.2f} ({m['copying_processor']:.2f}) |"
        )
    spent = sender_seconds(size // 4)
    (one, alone), (many, shared) = spent.items()
    print(f"\nsender's processor time, {many} receivers to {one}: {shared / alone:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
