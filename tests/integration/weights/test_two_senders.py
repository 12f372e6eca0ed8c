"""Two FSDP2 ranks in two processes publish, each with its own server; receivers assemble the full tensors."""

# mypy: disable-error-code="no-untyped-call"
import asyncio
import errno
import multiprocessing as mp
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role, TlsFiles
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.rollout import WeightEncoding, WeightTransport
from kubealign.spec.sections.training import AdamW, Backend, Optimizer, Trainer
from kubealign.spec.sections.training import TorchBackendSpec as TorchSpec
from kubealign.v1 import refit_pb2, training_pb2
from kubealign_services.batch.codec import encode
from kubealign_services.batch.packed import pack
from kubealign_services.roles.trainer.weight_publication import PublishWeightsCommand
from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.runtime.rpc.server import RpcServer
from kubealign_services.training.commands.command_executor import StepPlan, TrainingCore
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.commands.server import make_handler
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.announce.tensor_regions import Box
from kubealign_services.weights.receive.receiver import WeightsReceiver
from kubealign_services.weights.send.publisher import PublishFailed, WeightsPublisher
from kubealign_services.weights.send.servicer import WeightsSenderServicer
from kubealign_services.weights.send.snapshot_file import HEADER_BYTES
from kubealign_services.weights.transfer.stream.peer_streams import PeerStreams
from kubealign_services.weights.verify.canary import Canary
from support.command_key import COMMAND_KEY
from support.free_address import free_address
from support.mean_negative_logprob import MeanNegativeLogprob

pytestmark = pytest.mark.timeout(240)

# 41 rows do not split evenly: FSDP2 gives rank 0 twenty-one.
VOCABULARY, WIDTH = 41, 24
SPEC = Trainer(
    ranks=2,
    backend=Backend(torch=TorchSpec(microbatch_tokens=64, precision=Precision.BFLOAT16)),
    optimizer=Optimizer(adam_w=AdamW(learning_rate=2e-5)),
)


class Rank:
    """One rank of the trainer: its backend, its publisher, and its command handlers."""

    def __init__(self, rank: int, model: Path, shared: Path, address: str) -> None:
        self.publisher = WeightsPublisher(
            shared, address, WeightTransport.AUTO, rank=rank, encoding=WeightEncoding.DELTA
        )
        self._rank = rank
        self._core = TrainingCore(
            lambda: TorchTrainingBackend.create(
                model, Head.LANGUAGE_MODEL, SPEC, total_updates=9, rank=rank, world_size=2
            ),
            MeanNegativeLogprob(),
            StepPlan(1, None),
            seed=1,
            role="trainer",
            world_size=2,
        )
        canary = Canary.choose(1, VOCABULARY, [Precision.BFLOAT16])
        self._publish = PublishWeightsCommand(self._core, canary, self.publisher, rank, 2)

    def handlers(self) -> Handlers:
        return {
            "Load": make_handler(training_pb2.LoadRequest, self._core.load),
            "TrainStep": make_handler(training_pb2.TrainStepRequest, self._core.train_step),
            "PublishWeights": make_handler(refit_pb2.PublishWeightsRequest, self._publish),
            "Gathered": self._gathered,
        }

    def _gathered(self, path: bytes) -> bytes:
        """Write the full weights, as a single rank would publish them, to a file."""
        weights = dict(self._core.backend.snapshot())
        if self._rank == 0:
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path.decode())
        return b""


def follow(model: Path, shared: Path, address: str, rendezvous: str, tls: TlsFiles) -> None:
    """Run rank 1 until it is killed or told to end: the group on this thread, the server on another."""
    torch.set_num_threads(1)
    rank = Rank(1, model, shared, address)

    async def serve() -> None:
        async with RpcServer(
            address, tls, [WeightsSenderServicer(rank.publisher)], lambda *_: None, grace=1.0
        ):
            await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(serve(),), daemon=True).start()
    with CommandGroup(1, 2, rendezvous, 120, COMMAND_KEY) as group:
        group.follow(rank.handlers())


class Site:
    """Rank 0 in this process, rank 1 in another, and receivers."""

    def __init__(self, folder: Path, group: CommandGroup, rank: Rank, other: Any, tls: TlsFiles) -> None:
        self.folder = folder
        self.rank = rank
        self.other = other
        self._group = group
        self._handlers = rank.handlers()
        self._tls = tls

    async def tell(self, name: str, payload: bytes) -> bytes:
        return await asyncio.to_thread(self._group.run, name, payload, self._handlers)

    async def train(self, step: int) -> None:
        tokens = torch.randint(VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(step)).tolist()
        batch = encode(pack(tokens, [str(index) for index in range(4)]))
        request = training_pb2.TrainStepRequest(fence=1, step=step, update=True, batch=batch)
        await self.tell("TrainStep", request.SerializeToString())

    async def publish(self, version: int) -> tuple[refit_pb2.WeightsAnnouncement, dict[str, Tensor]]:
        """Return the announcement and the gathered weights."""
        request = refit_pb2.PublishWeightsRequest(fence=1, version=version)
        answer = await self.tell("PublishWeights", request.SerializeToString())
        path = self.folder / f"gathered-{version}"
        await self.tell("Gathered", str(path).encode())
        return refit_pb2.WeightsAnnouncement.FromString(answer), load_file(path)

    def receiver(
        self,
        streams: PeerStreams,
        near: bool,
        encoding: WeightEncoding = WeightEncoding.DENSE,
        **options: Any,
    ) -> WeightsReceiver:
        folder = self.folder / ("shared" if near else "nowhere")
        return WeightsReceiver(folder, streams, 20.0, encoding=encoding, **options)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Site, PeerStreams]]:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.2,
        tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    authority = CertificateAuthority.create("two-senders", timedelta(hours=1))
    tls = {role: write_tls(folder / role, authority, role) for role in (Role.TRAINER, Role.ROLLOUT)}
    rendezvous, addresses = free_address(), [free_address(), free_address()]
    shared = folder / "shared"
    other = mp.get_context("spawn").Process(
        target=follow, args=(folder / "model", shared, addresses[1], rendezvous, tls[Role.TRAINER])
    )
    other.start()
    try:
        rank = Rank(0, folder / "model", shared, addresses[0])
        group = CommandGroup(0, 2, rendezvous, 120, COMMAND_KEY)
        await asyncio.to_thread(group.__enter__)
        sender = WeightsSenderServicer(rank.publisher)
        async with (
            RpcServer(addresses[0], tls[Role.TRAINER], [sender], lambda *_: None, grace=1.0),
            PeerStreams(tls[Role.ROLLOUT]) as streams,
        ):
            yield Site(folder, group, rank, other, tls[Role.ROLLOUT]), streams
        # Rank 1 may be dead, so its end is not awaited.
        group.__exit__(RuntimeError, None, None)
    finally:
        other.kill()
        other.join(20)


async def taken(
    receiver: WeightsReceiver, announcement: refit_pb2.WeightsAnnouncement
) -> tuple[dict[str, Tensor], tuple[str, int]]:
    async with receiver.fetch(announcement) as transfer:
        copied = {name: tensor.clone() for name, tensor in transfer.tensors}
        transfer.check_valid()
        return copied, (transfer.transport, transfer.delta_parts)


@contextmanager
def full_disk(publisher: WeightsPublisher) -> Iterator[None]:
    """Make the next snapshot fail after one piece."""
    file = publisher._slots[publisher._next_slot].file
    write = file.write

    def ends(slices: Iterable[WeightSlice]) -> Any:
        next(iter(slices))
        raise OSError(errno.ENOSPC, "No space left on device")

    file.write = ends  # type: ignore[method-assign]
    try:
        yield
    finally:
        file.write = write  # type: ignore[method-assign]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES + offset)
        byte = file.read(1)[0]
        file.seek(HEADER_BYTES + offset)
        file.write(bytes([byte ^ 1]))


def same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return actual.keys() == expected.keys() and all(
        torch.equal(actual[name], expected[name]) for name in expected
    )


async def test_two_ranks_publish_their_parts(tmp_path: Path) -> None:
    async with asyncio.timeout(210), opened(tmp_path) as (site, streams):
        await site.tell("Load", training_pb2.LoadRequest(fence=1).SerializeToString())
        near = site.receiver(streams, near=True)
        far = site.receiver(streams, near=False)
        delta = site.receiver(streams, near=False, encoding=WeightEncoding.DELTA)
        for version in range(3):
            announcement, gathered = await site.publish(version)
            dense = sum(tensor.numel() * 2 for tensor in gathered.values())
            assert {tensor.dtype for tensor in gathered.values()} == {torch.bfloat16}
            part_bytes = [sum(entry.size_bytes for entry in part.tensors) for part in announcement.parts]
            # Each rank has about half, without overlap.
            assert len(part_bytes) == 2 and sum(part_bytes) == dense and min(part_bytes) > 0.4 * dense
            (rows,) = (e for e in announcement.parts[1].tensors if e.name == "model.embed_tokens.weight")
            assert (list(rows.start), list(rows.shape)) == ([21, 0], [20, WIDTH])
            for receiver, how in (
                (near, ("shared_memory", 0)),
                (far, ("stream", 0)),
                (delta, ("stream", 2 if version else 0)),
            ):
                received, transport = await taken(receiver, announcement)
                assert same(received, gathered) and transport == how, (version, transport)
            if version:
                sizes = [sum(part.delta_sizes) for part in announcement.parts]
                assert 0 < sum(sizes) < 0.6 * dense, (sizes, dense)
            await site.train(version + 1)

        # One process of an engine with several processes requests the lower half of each matrix.
        def lower(name: str, shape: tuple[int, ...]) -> list[Box]:
            return [Box((shape[0] // 2, 0), (shape[0] - shape[0] // 2, shape[1]))] if len(shape) == 2 else []

        received, _ = await taken(site.receiver(streams, near=False, select_ranges=lower), announcement)
        matrices = {name: tensor for name, tensor in gathered.items() if tensor.dim() == 2}
        assert same(received, {name: tensor[tensor.shape[0] // 2 :] for name, tensor in matrices.items()})

        # Corrupt rank 1's part in the file that both of its sources read.
        segment = tmp_path / "shared" / announcement.parts[1].sources[0].shared_memory.name
        flip(segment, 70)
        for receiver in (near, far):
            with pytest.raises(CorruptTransfer, match=r"the part of rank 1: .* have the wrong checksum"):
                await taken(receiver, announcement)
        flip(segment, 70)
        received, _ = await taken(far, announcement)
        assert same(received, gathered)

        # Rank 0 has a full disk: both ranks fail, the group stays intact, and the next attempt succeeds.
        with full_disk(site.rank.publisher), pytest.raises(PublishFailed, match=r"rank 0: .* No space left"):
            await site.publish(3)
        announcement, gathered = await site.publish(3)
        received, _ = await taken(far, announcement)
        assert same(received, gathered)

        # Rank 1 is dead: its shared memory still serves local receivers, and remote ones get an error.
        site.other.kill()
        await asyncio.to_thread(site.other.join, 20)
        received, _ = await taken(near, announcement)
        assert same(received, gathered)
        with pytest.raises(Unreachable, match="the part of rank 1: "):
            await taken(far, announcement)
