"""Relays: serve only verified pieces, while others arrive, and no bytes that are about to change."""

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest
import xxhash

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound, Unreachable
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.receive.part_assembler import PartAssembler, PartPiece
from kubealign_services.weights.transfer.delta.codec import encode_delta
from kubealign_services.weights.transfer.stream.part_streamer import PartStreamer
from kubealign_services.weights.transfer.stream.relay import CHUNK_BYTES, Relay

pytestmark = pytest.mark.timeout(30)

# Pieces at 0, 128, 192 (of no bytes) and 192: as in a manifest, aligned to 64 bytes.
SPANS = [(0, 100), (128, 192), (192, 192), (192, 200)]
SENDER = "trainer:1"


def weights(version: int) -> batch_pb2.WeightsId:
    return batch_pb2.WeightsId(fence=1, version=version, digest="d")


def contents(seed: int = 1) -> bytes:
    data = bytearray(np.random.default_rng(seed).integers(0, 256, 200, np.uint8).tobytes())
    data[100:128] = bytes(28)
    return bytes(data)


def pieces(data: bytes, places: tuple[int, ...] = (0, 1, 2, 3)) -> list[PartPiece]:
    return [
        PartPiece(index, f"t{index}", *SPANS[index], xxhash.xxh3_64_hexdigest(data[slice(*SPANS[index])]))
        for index in places
    ]


def empty(data: bytes, places: tuple[int, ...] = (0, 1, 2, 3)) -> PartAssembler:
    return PartAssembler(memoryview(bytearray(len(data))), pieces(data, places))


def request(version: int = 1, **fields: object) -> refit_pb2.FetchWeightsRequest:
    return refit_pb2.FetchWeightsRequest(weights=weights(version), **fields)  # type: ignore[arg-type]


async def taken(relay: Relay, asked: refit_pb2.FetchWeightsRequest) -> dict[int, bytes]:
    return {chunk.offset_bytes: chunk.data async for chunk in relay.chunks(asked) if chunk.data}


def test_piece_is_verified_with_its_last_byte() -> None:
    data = contents()
    incoming = empty(data)
    done = []
    for start in range(0, 200, 40):
        incoming.put(start, data[start : start + 40], SENDER)
        done.append(incoming.verified_count)
    # The first ends at 100, the second at 192 and with it the one of no bytes, the last at 200.
    assert done == [0, 0, 1, 1, 4] and incoming.is_complete
    assert bytes(incoming.buffer) == data and incoming.received_bytes == 200


@pytest.mark.parametrize("flipped", [0, 99, 128, 199])
def test_flipped_bit_invalidates_only_its_piece(flipped: int) -> None:
    data = contents()
    harmed = bytearray(data)
    harmed[flipped] ^= 4
    incoming = empty(data)
    index = next(index for index, (start, end) in enumerate(SPANS) if start <= flipped < end)
    with pytest.raises(CorruptTransfer, match=rf"1 of 4 tensors from trainer:1 .* checksum: t{index}"):
        for start in range(0, 200, 50):
            incoming.put(start, bytes(harmed[start : start + 50]), SENDER)
    assert [incoming.is_verified(other) for other in range(index)] == [
        True
    ] * index and not incoming.is_verified(index)
    incoming.restart()
    begin = SPANS[index][0]
    incoming.put(begin, data[begin:], "another:1")
    assert incoming.is_complete and bytes(incoming.buffer) == data


def test_gaps_and_excess_bytes_are_refused() -> None:
    data = contents()
    incoming = empty(data)
    with pytest.raises(CorruptTransfer, match="sent bytes from offset 64, expected 0"):
        incoming.put(64, data[64:], SENDER)
    incoming.put(0, data[:50], SENDER)
    with pytest.raises(CorruptTransfer, match="sent bytes from offset 0, expected 50"):
        incoming.put(0, data[:50], SENDER)
    with pytest.raises(CorruptTransfer, match="sent bytes up to 201 of a snapshot of 200"):
        incoming.put(50, data[50:] + b"x", SENDER)
    # The padding between pieces need not be sent.
    incoming.put(50, data[50:100], SENDER)
    incoming.put(128, data[128:], SENDER)
    with pytest.raises(CorruptTransfer, match="more bytes than requested"):
        incoming.put(128, data[128:], SENDER)


def test_corrupt_delta_is_neither_applied_nor_relayed() -> None:
    old, new = bytes(400), bytes(range(200)) * 2
    delta = encode_delta(old, new, 2)
    harmed = delta[:-1] + bytes([delta[-1] ^ 1])
    incoming = PartAssembler(memoryview(bytearray(len(delta))), [PartPiece(0, "t", 0, len(delta), None)])
    with pytest.raises(CorruptTransfer, match="the delta of t is invalid: the checksum"):
        incoming.put(0, harmed, SENDER)
    incoming.restart()
    incoming.put(0, delta, SENDER)
    assert incoming.is_complete


async def test_pieces_are_relayed_while_others_arrive_with_keepalives() -> None:
    data = contents()
    relay, incoming = Relay("here:1", alive_seconds=0.05), empty(data)
    relay.offer(weights(1), 0, False, incoming)
    stream = relay.chunks(request())
    incoming.put(0, data[:130], SENDER)
    first = await anext(stream)
    assert (first.offset_bytes, first.data) == (0, data[:100])
    alive = await anext(stream)
    assert (alive.offset_bytes, alive.data, alive.instead) == (0, b"", "")
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    incoming.put(130, data[130:], SENDER)
    rest = await waiting
    assert (rest.offset_bytes, rest.data) == (128, data[128:])
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_selected_and_skipped_pieces() -> None:
    data = contents()
    relay, incoming = Relay("here:1"), empty(data, (0, 1, 3))
    relay.offer(weights(1), 4, False, incoming)
    incoming.put(0, data, SENDER)
    assert await taken(relay, request(rank=4)) == {0: data}
    assert await taken(relay, request(rank=4, skip=1)) == {128: data[128:]}
    assert await taken(relay, request(rank=4, tensors=[0, 3])) == {0: data[:100], 192: data[192:]}
    for asked, words in (
        (request(rank=4, tensors=[2]), "piece 2 is not at here:1"),
        (request(rank=0), "rank 0's part of weights version 1 .* is not at here:1"),
        (request(rank=4, delta=True), "changes of rank 4's part"),
        (request(2, rank=4), "which has version 1"),
    ):
        with pytest.raises(NotFound, match=words):
            await taken(relay, asked)


async def test_chunks_are_short() -> None:
    size = 2 * CHUNK_BYTES + 10
    data = bytes(size)
    piece = PartPiece(0, "t", 0, size, xxhash.xxh3_64_hexdigest(data))
    relay, incoming = Relay("here:1"), PartAssembler(memoryview(bytearray(size)), [piece])
    relay.offer(weights(1), 0, False, incoming)
    incoming.put(0, data, SENDER)
    received = await taken(relay, request())
    assert {offset: len(chunk) for offset, chunk in received.items()} == {
        0: CHUNK_BYTES,
        CHUNK_BYTES: CHUNK_BYTES,
        2 * CHUNK_BYTES: 10,
    }


async def test_withdrawn_bytes_are_not_relayed() -> None:
    """Streams of the previous version continue until deltas are applied to its buffer."""
    data = contents()
    relay, incoming = Relay("here:1"), empty(data)
    relay.offer(weights(1), 0, False, incoming)
    incoming.put(0, data[:130], SENDER)
    unaffected, stopped = relay.chunks(request()), relay.chunks(request())
    await anext(unaffected)
    await anext(stopped)
    relay.offer(weights(2), 0, False, empty(data))
    with pytest.raises(NotFound, match=r"version 1 .* is not at here:1"):
        await taken(relay, request(1))
    incoming.put(130, data[130:], SENDER)
    assert (await anext(unaffected)).data == data[128:]
    relay.withdraw(incoming.buffer, "changes are made to them")
    with pytest.raises(NotFound, match="changes are made to them"):
        await anext(stopped)


async def test_waiting_stream_fails_when_the_transfer_fails() -> None:
    relay, incoming = Relay("here:1"), empty(contents())
    relay.offer(weights(1), 0, False, incoming)
    waiting = asyncio.create_task(taken(relay, request()))
    await asyncio.sleep(0)
    relay.withdraw(incoming.buffer, "they did not come: the sender is gone")
    with pytest.raises(NotFound, match="they did not come: the sender is gone"):
        await waiting


class Wire:
    """Messages of each address: chunks, an error to raise, or a silence."""

    def __init__(self, **scripts: list[object]) -> None:
        self._scripts = scripts
        self.asked: list[tuple[str, refit_pb2.FetchWeightsRequest]] = []

    async def __call__(
        self, address: str, asked: refit_pb2.FetchWeightsRequest, timeout: float
    ) -> AsyncGenerator[refit_pb2.WeightsChunk]:
        self.asked.append((address, asked))
        script = self._scripts[address.partition(":")[0]].pop(0)
        assert isinstance(script, list)
        for item in script:
            if item is None:
                await asyncio.Event().wait()
            if isinstance(item, Exception):
                raise item
            yield item

    @property
    def path(self) -> list[str]:
        return [address for address, _ in self.asked]


def chunk(data: bytes, start: int, end: int) -> refit_pb2.WeightsChunk:
    return refit_pb2.WeightsChunk(offset_bytes=start, data=data[start:end])


async def filled(wire: Wire, data: bytes, timeout: float = 20.0, tries: int = 1) -> PartAssembler:
    incoming = empty(data)
    streams = PartStreamer(wire, timeout, "me", Relay("me:1"))
    await streams.fill(SENDER, request(rank=3), incoming, tries)
    return incoming


async def test_receiver_follows_the_redirect() -> None:
    data = contents()
    instead = refit_pb2.WeightsChunk(instead="a:1")
    wire = Wire(trainer=[[instead]], a=[[chunk(data, 0, 200)]])
    incoming = await filled(wire, data)
    assert bytes(incoming.buffer) == data and wire.path == [SENDER, "a:1"]
    _, asked = wire.asked[0]
    assert (asked.asker, asked.address, asked.rank, list(asked.lost)) == ("me", "me:1", 3, [])


@pytest.mark.parametrize(
    "fails", [Unreachable("a:1 broke off"), NotFound("gone"), refit_pb2.WeightsChunk(instead="b:1")]
)
async def test_missing_pieces_are_requested_again_without_duplicates(fails: object) -> None:
    data = contents()
    first, second = refit_pb2.WeightsChunk(instead="a:1"), refit_pb2.WeightsChunk(instead="b:1")
    wire = Wire(
        trainer=[[first], [second]],
        a=[[chunk(data, 0, 150), fails]],
        b=[[refit_pb2.WeightsChunk(), chunk(data, 128, 200)]],
    )
    incoming = await filled(wire, data)
    assert bytes(incoming.buffer) == data
    assert wire.path == [SENDER, "a:1", SENDER, "b:1"]
    # The first piece was complete.
    assert [asked.skip for _, asked in wire.asked] == [0, 0, 1, 1]
    assert [list(asked.lost) for _, asked in wire.asked] == [[], [], ["a:1"], ["a:1"]]


async def test_silent_relay_is_replaced() -> None:
    data = contents()
    wire = Wire(
        trainer=[[refit_pb2.WeightsChunk(instead="a:1")], [chunk(data, 0, 200)]],
        a=[[refit_pb2.WeightsChunk(), None]],
    )
    incoming = await filled(wire, data, timeout=0.4)
    assert incoming.is_complete and wire.path == [SENDER, "a:1", SENDER]


async def test_corrupting_relay_is_replaced() -> None:
    data = contents()
    harmed = data[:60] + b"?" + data[61:]
    wire = Wire(
        trainer=[[refit_pb2.WeightsChunk(instead="a:1")], [chunk(data, 0, 200)]], a=[[chunk(harmed, 0, 200)]]
    )
    incoming = await filled(wire, data)
    assert bytes(incoming.buffer) == data and wire.path == [SENDER, "a:1", SENDER]


async def test_sender_errors_are_raised_with_all_causes() -> None:
    data = contents()
    wire = Wire(trainer=[[chunk(data, 0, 150)], [Unreachable("nobody there")]])
    with pytest.raises(Unreachable, match=r"sent 150 bytes and ended; 3 pieces .*; then nobody there"):
        await filled(wire, data, tries=2)
