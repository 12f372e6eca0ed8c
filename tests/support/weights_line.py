"""A sender of weights and its receivers, each a process with a server under mutual TLS, controlled over
pipes. Without bus and engine: only the transfer of the bytes."""

import asyncio
import multiprocessing as mp
import os
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import ProcessSettings, Role, TlsFiles
from kubealign.spec.sections.rollout import RefitSpec, WeightEncoding, WeightTransport
from kubealign.v1 import refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound, Unreachable
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.receive.receiver_factory import open_receiver
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.send.servicer import WeightsSenderServicer
from kubealign_services.weights.transfer.collective.process_group import BroadcastGroup
from kubealign_services.weights.transfer.collective.sender import BroadcastSender
from kubealign_services.weights.transfer.stream.part_streamer import PartStreamer
from kubealign_services.weights.transfer.stream.relay import Relay
from support.free_address import free_address

_ANSWER_SECONDS = 60.0
_PIECES = 16
_PRELOADED = (
    "torch",
    "kubealign.access.certificate_authority",
    "kubealign_services.weights.receive.receiver_factory",
    "kubealign_services.weights.transfer.collective.sender",
    "kubealign_services.runtime.rpc.server",
)


def weights_of(version: int, size_bytes: int) -> list[tuple[str, Tensor]]:
    """Return weights in bf16. One in fifty differs from the previous version, by one unit in the last
    place."""
    generator = torch.Generator().manual_seed(7)
    count = size_bytes // 2 // _PIECES
    bits = [
        torch.randint(-1000, 1000, (count,), dtype=torch.int16, generator=generator) for _ in range(_PIECES)
    ]
    for _ in range(version):
        for piece in bits:
            piece[torch.randint(count, (count // 50,), generator=generator)] += 1
    return [(f"layer.{index:02}", piece.view(torch.bfloat16)) for index, piece in enumerate(bits)]


def digest_of(tensors: Sequence[tuple[str, Tensor]]) -> str:
    digest = xxhash.xxh3_64()
    for name, tensor in tensors:
        digest.update(name.encode())
        digest.update(tensor.view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


class _Counting(WeightsSenderServicer):
    """Counts the streamed bytes."""

    sent_bytes = 0

    async def FetchWeights(self, request: Any, context: Any) -> AsyncIterator[refit_pb2.WeightsChunk]:
        async for chunk in super().FetchWeights(request, context):
            self.sent_bytes += len(chunk.data)
            yield chunk


def _send(line: Connection, tls: TlsFiles, folder: Path, address: str, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    asyncio.run(_sending(line, tls, folder, address, options))


async def _sending(
    line: Connection, tls: TlsFiles, folder: Path, address: str, options: dict[str, Any]
) -> None:
    refit = RefitSpec.model_validate(options["refit"])
    publisher = WeightsPublisher(folder, address, refit.transport, encoding=refit.encoding)
    broadcasts = None
    if refit.transport is WeightTransport.COLLECTIVE:
        broadcasts = BroadcastSender(publisher, "127.0.0.1", options["expected"], refit.timeout_seconds)
    servicer = _Counting(publisher, refit.fan_out, broadcasts)
    loop = asyncio.get_running_loop()
    async with RpcServer(address, tls, [servicer], lambda *_: None, grace=0.5):
        line.send("ready")
        while True:
            command, version = await loop.run_in_executor(None, line.recv)
            if command == "publish":
                tensors = weights_of(version, options["size_bytes"])
                announcement = await asyncio.to_thread(
                    publisher.publish,
                    fence=1,
                    version=version,
                    tensors=tensors,
                    canary=refit_pb2.Canary(),
                )
                line.send((announcement.SerializeToString(), digest_of(tensors)))
            else:
                line.send((servicer.sent_bytes, time.process_time()))
                servicer.sent_bytes = 0


class _Doomed(Relay):
    """Kills or stops its process after relaying `after` chunks."""

    end = signal.SIGKILL
    after = 3

    async def chunks(self, request: Any) -> AsyncIterator[refit_pb2.WeightsChunk]:
        async for chunk in super().chunks(request):
            if chunk.data:
                self.after -= 1
            if self.after == 0:
                os.kill(os.getpid(), self.end)
            yield chunk


def _doom(relay: Relay | None, end: signal.Signals) -> None:
    """Make the process end in the middle of a relay, or of a broadcast."""
    if relay is not None:
        relay.__class__ = _Doomed
        _Doomed.end = end
    original = BroadcastGroup.broadcast
    buckets = 0

    def broadcast(group: BroadcastGroup, stretch: Tensor) -> None:
        nonlocal buckets
        buckets += 1
        if buckets == 2:
            os.kill(os.getpid(), end)
        original(group, stretch)

    BroadcastGroup.broadcast = broadcast  # type: ignore[method-assign, assignment]


def _receive(line: Connection, settings: ProcessSettings, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    asyncio.run(_receiving(line, settings, options))


async def _receiving(line: Connection, settings: ProcessSettings, options: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    assert settings.listen is not None
    async with AsyncExitStack() as stack:
        received = await stack.enter_async_context(
            open_receiver(settings, RefitSpec.model_validate(options["refit"]), None)
        )
        streams: PartStreamer = received.receiver._parts._streams
        if options["end"]:
            _doom(streams.relay, options["end"])
        opened = streams.open_stream

        async def heard(address: str, request: Any, timeout: float) -> AsyncGenerator[refit_pb2.WeightsChunk]:
            """Report the sender at its first chunk. Delays chunks, so that a test can act in the middle."""
            first = True
            async for chunk in opened(address, request, timeout):
                if first and not chunk.instead:
                    line.send(("from", address))
                    first = False
                if options["slow"]:
                    await asyncio.sleep(options["slow"])
                yield chunk

        object.__setattr__(streams, "open_stream", heard)
        await stack.enter_async_context(
            RpcServer(settings.listen, settings.tls, received.servicers, lambda *_: None, grace=0.5)
        )
        line.send(("ready", ""))
        while True:
            announcement = refit_pb2.WeightsAnnouncement.FromString(
                await loop.run_in_executor(None, line.recv)
            )
            try:
                async with received.receiver.fetch(announcement) as transfer:
                    digest = digest_of(list(transfer.tensors))
                    summary = digest, transfer.transport, transfer.received_bytes, transfer.delta_parts
                line.send(("took", summary))
            except (CorruptTransfer, NotFound, Unreachable) as error:
                line.send(("failed", f"{type(error).__name__}: {error}"))


@dataclass
class Receiver:
    """A receiver process. heard: addresses it streamed from, in order, since `take`."""

    address: str
    line: Connection
    process: Any
    heard: list[str] = field(default_factory=list)

    def take(self, announcement: bytes) -> None:
        self.heard.clear()
        self.line.send(announcement)

    def begun(self) -> str:
        """Wait for the first bytes and return the address of their sender."""
        kind, address = self._next_message()
        assert kind == "from", (kind, address)
        return str(address)

    def taken(self) -> tuple[str, str, int, int]:
        """Wait for the end. Return digest, transport, received bytes, and the number of parts received as
        deltas."""
        while True:
            kind, result = self._next_message()
            if kind == "took":
                return result  # type: ignore[no-any-return]
            assert kind == "from", result

    def _next_message(self) -> Any:
        if not self.line.poll(_ANSWER_SECONDS):
            raise TimeoutError(f"the receiver at {self.address} has not answered")
        message = self.line.recv()
        if message[0] == "from":
            self.heard.append(message[1])
        return message


@dataclass
class WeightsLine:
    """A sender, and receivers that are started on demand."""

    folder: Path
    address: str
    refit: RefitSpec
    _sender: Connection
    _authority: CertificateAuthority
    _context: Any
    _processes: list[Any]

    def receiver(self, slow: float = 0.0, end: signal.Signals | None = None) -> Receiver:
        """Start a receiver. slow: delay per chunk in seconds. end: signal that it sends itself while
        relaying."""
        return self.receivers(1, slow, end)[0]

    def receivers(self, count: int, slow: float = 0.0, end: signal.Signals | None = None) -> list[Receiver]:
        started = [self._started(slow, end) for _ in range(count)]
        for receiver in started:
            assert receiver._next_message() == ("ready", "")
        return started

    def _started(self, slow: float, end: signal.Signals | None) -> Receiver:
        address = free_address()
        ours, theirs = self._context.Pipe()
        known: dict[str, Any] = {
            "name": f"rollout-{len(self._processes)}",
            "role": Role.ROLLOUT,
            "rank": 0,
            "listen": address,
            "advertise": None,
            "shared_memory": self.folder / "nowhere",
            "tls": write_tls(self.folder / f"tls-{len(self._processes)}", self._authority, Role.ROLLOUT),
        }
        settings = ProcessSettings.model_construct(**known)
        options = {"refit": self.refit.model_dump(mode="json"), "slow": slow, "end": end}
        process = self._context.Process(target=_receive, args=(theirs, settings, options))
        process.start()
        theirs.close()
        self._processes.append(process)
        return Receiver(address, ours, process)

    def publish(self, version: int) -> tuple[bytes, str]:
        """Publish a version. Return the announcement and the digest of the weights."""
        return self._ask(("publish", version))  # type: ignore[no-any-return]

    def spent(self) -> tuple[int, float]:
        """Return the bytes streamed since the last call, and the sender's processor time so far."""
        return self._ask(("spent", 0))  # type: ignore[no-any-return]

    def _ask(self, command: tuple[str, int]) -> Any:
        self._sender.send(command)
        if not self._sender.poll(_ANSWER_SECONDS):
            raise TimeoutError("the sender has not answered")
        return self._sender.recv()


@contextmanager
def weights_line(
    folder: Path,
    size_bytes: int,
    *,
    fan_out: int | None = None,
    transport: WeightTransport = WeightTransport.STREAM,
    encoding: WeightEncoding = WeightEncoding.DENSE,
    timeout: float = 40.0,
    expected: int = 1,
) -> Iterator[WeightsLine]:
    """Start a sender. All processes end with the block. expected: number of receivers of the first
    broadcast."""
    context = mp.get_context("forkserver")
    # Imported before they fork; this module itself is not on the fork server's path.
    context.set_forkserver_preload(list(_PRELOADED))
    authority = CertificateAuthority.create("weights-line", timedelta(hours=1))
    refit = RefitSpec(fan_out=fan_out, transport=transport, encoding=encoding, timeout_seconds=timeout)
    options = {"refit": refit.model_dump(mode="json"), "size_bytes": size_bytes, "expected": expected}
    address, (ours, theirs) = free_address(), context.Pipe()
    tls = write_tls(folder / "tls-sender", authority, Role.TRAINER)
    sender = context.Process(target=_send, args=(theirs, tls, folder / "shared", address, options))
    sender.start()
    theirs.close()
    processes = [sender]
    try:
        line = WeightsLine(folder, address, refit, ours, authority, context, processes)
        if not ours.poll(_ANSWER_SECONDS):
            raise TimeoutError("the sender has not begun")
        assert ours.recv() == "ready"
        yield line
    finally:
        for process in processes:
            process.kill()
            process.join(20)
