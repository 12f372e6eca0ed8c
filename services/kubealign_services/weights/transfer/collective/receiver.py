"""Receiver side of the collective transport: joins a broadcast and receives the bytes of a part."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import torch

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.process.rank_rendezvous import connect_store
from kubealign_services.runtime.rpc.errors import Unreachable
from kubealign_services.weights.transfer.collective.process_group import (
    BroadcastGroup,
    GroupMember,
    local_address_towards,
)

#: (host:port, request, seconds) -> the reply. Raises rpc.errors.
JoinBroadcast = Callable[
    [str, refit_pb2.JoinBroadcastRequest, float], Awaitable[refit_pb2.JoinBroadcastReply]
]


@dataclass
class BroadcastReceiver:
    """Broadcast receiver of one process.

    Args:
        asker: Unique to the process.
        timeout: Seconds for one version; a bucket may take a quarter of it.
    """

    join: JoinBroadcast
    asker: str
    timeout: float
    # Idle groups by sender address; groups in use and failed groups are not listed.
    _groups: dict[str, BroadcastGroup] = field(default_factory=dict)

    async def receive(self, address: str, weights: batch_pb2.WeightsId, size_bytes: int) -> memoryview:
        """Return the bytes of a full part, unverified.

        Raises:
            NotFound: The broadcast has started already.
            Unreachable: The broadcast broke.
        """
        group = self._groups.pop(address, None)
        request = refit_pb2.JoinBroadcastRequest(
            weights=weights,
            asker=self.asker,
            group="" if group is None else group.name,
            accelerator=torch.cuda.is_available(),
        )
        try:
            reply = await self.join(address, request, self.timeout)
        except BaseException:
            if group is not None:
                group.leave()
            raise
        return await asyncio.to_thread(self._receive_part, address, group, reply, size_bytes)

    def _receive_part(
        self,
        address: str,
        group: BroadcastGroup | None,
        reply: refit_pb2.JoinBroadcastReply,
        size_bytes: int,
    ) -> memoryview:
        # Allocated by torch, so that views keep the memory alive.
        part = torch.empty(size_bytes, dtype=torch.uint8)
        try:
            if group is not None and group.name != reply.group:
                group.leave()
                group = None
            if group is None:
                group = self._join_group(reply)
            for start in range(0, size_bytes, reply.bucket_bytes):
                group.broadcast(part[start : start + reply.bucket_bytes])
        except (RuntimeError, OSError) as error:
            if group is not None:
                group.leave()
            raise Unreachable(f"the broadcast from {address} broke: {error}") from error
        self._groups[address] = group
        view: memoryview = part.numpy().data
        return view

    def _join_group(self, reply: refit_pb2.JoinBroadcastReply) -> BroadcastGroup:
        host, _, port = reply.store.rpartition(":")
        wait = self.timeout / 4
        store, address = connect_store(host, int(port), wait), local_address_towards(host, int(port), wait)
        member = GroupMember(reply.group, reply.rank, reply.world_size, address, reply.accelerator)
        return BroadcastGroup(store, member, wait)
