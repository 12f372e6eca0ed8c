"""The sender's side of the collective transport: who takes part, and one broadcast of a part to all of them.

Who may take part is asked over gRPC, so by certificate; the bytes go over the group's own connections, and
are held against the announced checksums by whoever gets them. The first to join opens a version's round. It
begins when as many have joined as took part last, or when the time for it is over; whoever comes later
streams, and is waited for the next time. The group is kept as long as its members are the same and none has
failed.
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

from kubealign.process import ProcessSettings
from kubealign.spec.rollout import Rollout, Transport
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.group.rendezvous import opened_store
from kubealign_services.refit.broadcast_group import BUCKET_BYTES, BroadcastGroup
from kubealign_services.refit.manifest import identity
from kubealign_services.refit.publisher import WeightsPublisher
from kubealign_services.rpc.errors import NotFound

log = logging.getLogger(__name__)

# How long a round waits for those who took part in the last one.
_WINDOW_SECONDS = 5.0
# Rounds of the versions that are served, and of some before.
_ROUNDS = 4


@dataclass(frozen=True)
class _Begun:
    """group: its name. members: in the order of their ranks, from 1 on."""

    weights: batch_pb2.WeightsId
    group: str
    members: list[str]
    accelerator: bool


@dataclass
class _Round:
    """One version's."""

    weights: batch_pb2.WeightsId
    begun: asyncio.Future["_Begun"]
    joined: dict[str, refit_pb2.JoinBroadcastRequest] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)


class BroadcastSender:
    """One rank's. host: where receivers reach this process. expected: receivers of the first version.
    timeout: seconds for one version; a member that does not answer is given a quarter of it. `join` is of one
    event loop; the bytes are sent in threads."""

    def __init__(self, publisher: WeightsPublisher, host: str, expected: int, timeout: float) -> None:
        self._publisher = publisher
        self._host = host
        self._expected = expected
        self._timeout = timeout
        self._rounds: dict[bytes, _Round] = {}
        self._store: tuple[Store, int] | None = None
        self._names = 0
        # Free to be used again, and its members.
        self._group: tuple[BroadcastGroup, list[str]] | None = None

    async def join(self, request: refit_pb2.JoinBroadcastRequest) -> refit_pb2.JoinBroadcastReply:
        """Wait for the others. Raises NotFound for a round that has begun, and for weights that are not
        served."""
        self._publisher.check_served(request.weights)
        round_ = self._round(request.weights)
        if round_.begun.done():
            if request.asker not in round_.late:
                round_.late.add(request.asker)
                self._expected += 1
            raise NotFound(f"the broadcast of weights {identity(request.weights)} has begun already")
        round_.joined[request.asker] = request
        if len(round_.joined) >= self._expected:
            self._begin(round_)
        try:
            begun = await asyncio.shield(round_.begun)
        except asyncio.CancelledError:
            if not round_.begun.done():
                del round_.joined[request.asker]
            raise
        assert self._store is not None
        return refit_pb2.JoinBroadcastReply(
            group=begun.group,
            store=f"{self._host}:{self._store[1]}",
            rank=1 + begun.members.index(request.asker),
            world_size=1 + len(begun.members),
            bucket_bytes=BUCKET_BYTES,
            accelerator=begun.accelerator,
        )

    def close(self) -> None:
        """Nobody is sent anything any more."""
        if self._group is not None:
            self._group[0].end()
            self._group = None

    def _round(self, weights: batch_pb2.WeightsId) -> _Round:
        key = weights.SerializeToString(deterministic=True)
        if key not in self._rounds:
            loop = asyncio.get_running_loop()
            self._rounds[key] = opened = _Round(weights, loop.create_future())
            loop.call_later(min(_WINDOW_SECONDS, self._timeout / 8), self._begin, opened)
            while len(self._rounds) > _ROUNDS:
                del self._rounds[next(iter(self._rounds))]
        return self._rounds[key]

    def _begin(self, round_: _Round) -> None:
        if round_.begun.done():
            return
        if not round_.joined:
            # All have gone again: the next to join opens another.
            self._rounds = {key: held for key, held in self._rounds.items() if held is not round_}
            return
        members = sorted(round_.joined)
        self._expected = len(members)
        if self._store is None:
            self._store = opened_store(self._host, self._timeout)
        group = self._reused(members, round_)
        if group is None:
            self._names += 1
        begun = _Begun(
            round_.weights,
            f"broadcast-{self._names}" if group is None else group.name,
            members,
            torch.cuda.is_available() and all(asked.accelerator for asked in round_.joined.values()),
        )
        round_.begun.set_result(begun)
        send = partial(self._send, asyncio.get_running_loop(), self._store[0], begun, group)
        threading.Thread(target=send, name=begun.group, daemon=True).start()

    def _reused(self, members: list[str], round_: _Round) -> BroadcastGroup | None:
        """The group of the version before, if all of it are here and nobody else."""
        held, self._group = self._group, None
        if held is None:
            return None
        group, before = held
        if before == members and all(asked.group == group.name for asked in round_.joined.values()):
            return group
        group.end()
        return None

    def _send(
        self,
        loop: asyncio.AbstractEventLoop,
        store: Store,
        begun: _Begun,
        group: BroadcastGroup | None,
    ) -> None:
        try:
            if group is None:
                group = BroadcastGroup(
                    store,
                    begun.group,
                    0,
                    1 + len(begun.members),
                    self._timeout / 4,
                    address=_own(self._host),
                    accelerator=begun.accelerator,
                )
            for bucket in self._buckets(begun.weights):
                group.broadcast(bucket)
        except (RuntimeError, OSError, LookupError) as error:
            log.warning(
                "a broadcast of weights broke: receivers stream them",
                extra={"weights": identity(begun.weights), "members": begun.members, "cause": str(error)},
            )
            if group is not None:
                group.end()
            return
        try:
            loop.call_soon_threadsafe(self._keep, group, begun.members)
        except RuntimeError:
            # The loop is closed: so is the process.
            group.end()

    def _keep(self, group: BroadcastGroup, members: list[str]) -> None:
        if self._group is not None:
            self._group[0].end()
        self._group = group, members

    def _buckets(self, weights: batch_pb2.WeightsId) -> Iterator[Tensor]:
        """The part's bytes. Each is valid until the next."""
        bucket = torch.empty(BUCKET_BYTES, dtype=torch.uint8)
        view, filled = bucket.numpy().data, 0
        own = refit_pb2.FetchWeightsRequest(weights=weights, rank=self._publisher.rank)
        for chunk in self._publisher.chunks(own):
            data = memoryview(chunk.data)
            while data:
                taken = data[: BUCKET_BYTES - filled]
                view[filled : filled + len(taken)] = taken
                filled, data = filled + len(taken), data[len(taken) :]
                if filled == BUCKET_BYTES:
                    yield bucket
                    filled = 0
        if filled:
            yield bucket[:filled]


def _own(host: str) -> str:
    """The address to use; empty for a name, of which the machine knows best."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "127.0.0.1" if host == "localhost" else ""


def broadcast_sender(
    settings: ProcessSettings, publisher: WeightsPublisher, rollout: Rollout
) -> BroadcastSender | None:
    """Of a rank of the trainer, as its job's spec says. None: it broadcasts nothing."""
    address = settings.advertise or settings.listen
    if rollout.refit.transport is not Transport.COLLECTIVE or address is None:
        return None
    engine = rollout.engine.torch
    expected = rollout.replicas * (1 if engine is None else engine.tensor_parallel)
    host = address.rpartition(":")[0]
    return BroadcastSender(publisher, host, expected, rollout.refit.timeout_seconds)
