"""Reconnection to a peer that restarts at another address under the same name, as a pod does, with a test
name server.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from kubealign.access.certificate_authority import CertificateAuthority, write_tls
from kubealign.process_settings import Role
from kubealign.v1 import trainer_pb2_grpc, training_pb2
from kubealign_services.runtime.rpc import client
from kubealign_services.runtime.rpc.client import Peer
from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.runtime.rpc.server import RpcServer

pytestmark = pytest.mark.timeout(60)

NAME = "trainer.kubealign.test"
FIRST, SECOND = "127.0.0.2", "127.0.0.3"
_A, _INTERNET = 1, 1
_ANSWER = 0x8400


class NameServer(asyncio.DatagramProtocol):
    """Answers every query for an IPv4 address with `address` and no caching. None means that the name does
    not exist.

    Other queries get no records. See RFC 1035, section 4.
    """

    def __init__(self) -> None:
        self.address: str | None = None
        self.port = 0
        self.asked = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, sender: Any) -> None:
        end = data.index(b"\0", 12) + 5
        question = data[12:end]
        (kind,) = struct.unpack("!H", question[-4:-2])
        address = self.address if kind == _A else None
        self.asked += kind == _A
        header = data[:2] + struct.pack("!HHHHH", _ANSWER, 1, 0 if address is None else 1, 0, 0)
        record = b""
        if address is not None:
            # The name is the question's, at offset 12.
            record = struct.pack("!HHHIH", 0xC00C, _A, _INTERNET, 0, 4) + socket.inet_aton(address)
        self._transport.sendto(header + question + record, sender)


class Trainer(trainer_pb2_grpc.TrainerServicer):
    """Identifies itself by its step."""

    def __init__(self, number: int) -> None:
        self._number = number

    async def Describe(self, request: Any, context: Any) -> training_pb2.TrainingState:
        return training_pb2.TrainingState(step=self._number)


@pytest.fixture
async def names() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()


async def test_peer_is_reconnected_at_its_new_address(names: NameServer, tmp_path: Path) -> None:
    authority = CertificateAuthority.create("moves", timedelta(hours=1))
    served = write_tls(tmp_path / "trainer", authority, Role.TRAINER, [NAME])
    driver = write_tls(tmp_path / "driver", authority, Role.DRIVER)
    names.address = FIRST
    async with RpcServer(f"{FIRST}:0", served, [Trainer(1)], lambda *_: None, grace=0.0) as first:
        await first.set_serving(True)
        port = first.address.rpartition(":")[2]
        target = f"dns://127.0.0.1:{names.port}/{NAME}:{port}"
        peer = Peer("trainer", target, driver, trainer_pb2_grpc.TrainerStub)
        await peer.wait_until_ready(20.0)
    async with peer:
        # The name first keeps the address without a listener, then has none, then gets the new address.
        with pytest.raises(Unreachable):
            await peer.wait_until_ready(1.5)
        names.address = None
        with pytest.raises(Unreachable):
            await peer.wait_until_ready(1.5)
        names.address = SECOND
        async with RpcServer(f"{SECOND}:{port}", served, [Trainer(2)], lambda *_: None, grace=0.0) as second:
            await second.set_serving(True)
            # By default gRPC resolves a name at most every 30 seconds.
            await peer.wait_until_ready(10.0)
            state = await peer.call("Describe", training_pb2.DescribeRequest(), timeout=10.0)
            assert state.step == 2


async def test_unresolvable_name_is_resolved_again(
    names: NameServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check repeated resolution. gRPC waits longer after each failure, up to two minutes: here 1, 1.6 and 2.6
    seconds."""
    monkeypatch.setattr(client, "_REPLACE_CHANNEL_SECONDS", 0.25)
    tls = write_tls(tmp_path, CertificateAuthority.create("moves", timedelta(hours=1)), Role.DRIVER)
    target = f"dns://127.0.0.1:{names.port}/{NAME}:1"
    async with Peer("trainer", target, tls, trainer_pb2_grpc.TrainerStub) as peer:
        with pytest.raises(Unreachable, match=r"was not ready within 4 s: "):
            await peer.wait_until_ready(4.0)
    assert names.asked >= 8
