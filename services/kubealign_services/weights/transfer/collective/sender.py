"""Sender side of the collective transport: collects the members of a broadcast and sends a part to all of
them.

Membership is requested over gRPC, and thus authorized by certificate; the bytes go over the group's own
connections, and the receivers verify them against the announced checksums. The first receiver to join
opens the round of a version. The round starts when as many have joined as last time, or when the join
window ends; later receivers stream the weights instead, and are expected in the next round. The group is
reused while its members stay the same and none has failed.
"""

import asyncio
import ipaddress
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from kubealign.process_settings import ProcessSettings
from kubealign.spec.sections.rollout import Rollout, WeightTransport
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.runtime.process.rank_rendezvous import open_store
from kubealign_services.runtime.rpc.errors import NotFound
from kubealign_services.weights.announce.manifest import describe_weights
from kubealign_services.weights.send.publisher import WeightsPublisher
from kubealign_services.weights.transfer.collective.process_group import (
    BUCKET_BYTES,
    BroadcastGroup,
    GroupMember,
)

log = logging.getLogger(__name__)

# Seconds that a round waits for the members of the last round.
_JOIN_WINDOW_SECONDS = 5.0
# Rounds that are kept: of the served versions and of some earlier ones.
_MAX_ROUNDS = 4


@dataclass(frozen=True)
class _StartedRound:
    """A started round. group: its name. members: in the order of their ranks, from 1."""

    weights: batch_pb2.WeightsId
    group: str
    members: list[str]
    accelerator: bool


@dataclass
class _BroadcastRound:
    """Broadcast round of one version."""

    weights: batch_pb2.WeightsId
    started: asyncio.Future["_StartedRound"]
    joined: dict[str, refit_pb2.JoinBroadcastRequest] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)


class BroadcastSender:
    """Broadcast sender of one rank.

    Args:
        host: Address of this process for the receivers.
        expected: Number of receivers of the first version.
        timeout: Seconds for one version; a member that does not answer gets a quarter of it.

    `join` must be called from one event loop; the bytes are sent from threads.
    """

    def __init__(self, publisher: WeightsPublisher, host: str, expected: int, timeout: float) -> None:
        self._publisher = publisher
        self._host = host
        self._expected = expected
        self._timeout = timeout
        self._rounds: dict[bytes, _BroadcastRound] = {}
        self._store: tuple[Store, int] | None = None
        self._group_count = 0
        # The idle group, and its members.
        self._group: tuple[BroadcastGroup, list[str]] | None = None

    async def join(self, request: refit_pb2.JoinBroadcastRequest) -> refit_pb2.JoinBroadcastReply:
        """Wait for the other members.

        Raises NotFound for a round that has started, and for weights that are not served.
        """
        self._publisher.check_served(request.weights)
        round_ = self._get_round(request.weights)
        if round_.started.done():
            if request.asker not in round_.late:
                round_.late.add(request.asker)
                self._expected += 1
            raise NotFound(
                f"the broadcast of weights {describe_weights(request.weights)} has already started"
            )
        round_.joined[request.asker] = request
        if len(round_.joined) >= self._expected:
            self._start_round(round_)
        try:
            started = await asyncio.shield(round_.started)
        except asyncio.CancelledError:
            if not round_.started.done():
                del round_.joined[request.asker]
            raise
        assert self._store is not None
        return refit_pb2.JoinBroadcastReply(
            group=started.group,
            store=f"{self._host}:{self._store[1]}",
            rank=1 + started.members.index(request.asker),
            world_size=1 + len(started.members),
            bucket_bytes=BUCKET_BYTES,
            accelerator=started.accelerator,
        )

    def close(self) -> None:
        """End the group; no receiver is sent anything any more."""
        if self._group is not None:
            self._group[0].leave()
            self._group = None

    def _get_round(self, weights: batch_pb2.WeightsId) -> _BroadcastRound:
        key = weights.SerializeToString(deterministic=True)
        if key not in self._rounds:
            loop = asyncio.get_running_loop()
            self._rounds[key] = opened = _BroadcastRound(weights, loop.create_future())
            loop.call_later(min(_JOIN_WINDOW_SECONDS, self._timeout / 8), self._start_round, opened)
            while len(self._rounds) > _MAX_ROUNDS:
                del self._rounds[next(iter(self._rounds))]
        return self._rounds[key]

    def _start_round(self, round_: _BroadcastRound) -> None:
        if round_.started.done():
            return
        if not round_.joined:
            # All members have left again: the next one to join opens a new round.
            self._rounds = {key: other for key, other in self._rounds.items() if other is not round_}
            return
        members = sorted(round_.joined)
        self._expected = len(members)
        if self._store is None:
            self._store = open_store(self._host, self._timeout)
        group = self._reusable_group(members, round_)
        if group is None:
            self._group_count += 1
        started = _StartedRound(
            round_.weights,
            f"broadcast-{self._group_count}" if group is None else group.name,
            members,
            torch.cuda.is_available() and all(request.accelerator for request in round_.joined.values()),
        )
        round_.started.set_result(started)
        send = partial(self._broadcast_part, asyncio.get_running_loop(), self._store[0], started, group)
        threading.Thread(target=send, name=started.group, daemon=True).start()

    def _reusable_group(self, members: list[str], round_: _BroadcastRound) -> BroadcastGroup | None:
        """Return the group of the previous version if its members are exactly those of this round."""
        idle, self._group = self._group, None
        if idle is None:
            return None
        group, previous_members = idle
        names = {request.group for request in round_.joined.values()}
        if previous_members == members and names == {group.name}:
            return group
        group.leave()
        return None

    def _broadcast_part(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        started: _StartedRound,
        group: BroadcastGroup | None,
    ) -> None:
        try:
            if group is None:
                size, address = 1 + len(started.members), _bind_address(self._host)
                member = GroupMember(started.group, 0, size, address, started.accelerator)
                group = BroadcastGroup(store, member, self._timeout / 4)
            for bucket in self._buckets(started.weights):
                group.broadcast(bucket)
        except (RuntimeError, OSError, LookupError) as error:
            log.warning(
                "a weights broadcast failed; receivers stream instead",
                extra={
                    "weights": describe_weights(started.weights),
                    "members": started.members,
                    "cause": str(error),
                },
            )
            if group is not None:
                group.leave()
            return
        try:
            loop.call_soon_threadsafe(self._keep_group, group, started.members)
        except RuntimeError:
            # The loop is closed, so the process is shutting down.
            group.leave()

    def _keep_group(self, group: BroadcastGroup, members: list[str]) -> None:
        if self._group is not None:
            self._group[0].leave()
        self._group = group, members

    def _buckets(self, weights: batch_pb2.WeightsId) -> Iterator[Tensor]:
        """Yield the bytes of the part. Each bucket is valid until the next."""
        bucket = torch.empty(BUCKET_BYTES, dtype=torch.uint8)
        view, filled = bucket.numpy().data, 0
        own = refit_pb2.FetchWeightsRequest(weights=weights, rank=self._publisher.rank)
        for chunk in self._publisher.chunks(own):
            data = memoryview(chunk.data)
            while data:
                head = data[: BUCKET_BYTES - filled]
                view[filled : filled + len(head)] = head
                filled, data = filled + len(head), data[len(head) :]
                if filled == BUCKET_BYTES:
                    yield bucket
                    filled = 0
        if filled:
            yield bucket[:filled]


def _bind_address(host: str) -> str:
    """Return the address to bind to; empty for a host name, which is resolved on this machine."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "127.0.0.1" if host == "localhost" else ""


def make_broadcast_sender(
    settings: ProcessSettings, publisher: WeightsPublisher, rollout: Rollout
) -> BroadcastSender | None:
    """Return the broadcast sender of a trainer rank, or None when the job's spec uses another transport."""
    address = settings.advertise or settings.listen
    if rollout.refit.transport is not WeightTransport.COLLECTIVE or address is None:
        return None
    engine = rollout.engine.torch
    expected = rollout.replicas * (1 if engine is None else engine.tensor_parallel)
    host = address.rpartition(":")[0]
    return BroadcastSender(publisher, host, expected, rollout.refit.timeout_seconds)
