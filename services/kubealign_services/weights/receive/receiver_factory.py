"""Creates a process's weights receiver from its job's spec, with the servicers that relay weights."""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kubealign.process_settings import ProcessSettings
from kubealign.spec.sections.rollout import RefitSpec, WeightTransport
from kubealign_services.weights.receive.receiver import PeerTransfers, WeightsReceiver
from kubealign_services.weights.receive.transfer_plan import RangeSelector
from kubealign_services.weights.send.servicer import RelayServicer
from kubealign_services.weights.transfer.collective.receiver import BroadcastReceiver
from kubealign_services.weights.transfer.stream.peer_streams import PeerStreams
from kubealign_services.weights.transfer.stream.relay import Relay


@dataclass(frozen=True)
class ReceiverSetup:
    """servicers: to be served at the process's address, so that it relays received weights."""

    receiver: WeightsReceiver
    servicers: tuple[object, ...]


@asynccontextmanager
async def open_receiver(
    settings: ProcessSettings, refit: RefitSpec, select_ranges: RangeSelector | None
) -> AsyncIterator[ReceiverSetup]:
    """Open the receiver of this process.

    Args:
        select_ranges: Ranges that this process needs; None for all.
    """
    async with PeerStreams(settings.tls) as streams:
        asker = f"{settings.name}-{secrets.token_hex(4)}"
        address = settings.advertise or settings.listen
        relay = None if refit.fan_out is None or address is None else Relay(address)
        collective = refit.transport is WeightTransport.COLLECTIVE
        broadcasts = BroadcastReceiver(streams.join, asker, refit.timeout_seconds) if collective else None
        yield ReceiverSetup(
            WeightsReceiver(
                settings.shared_memory,
                streams,
                refit.timeout_seconds,
                select_ranges,
                refit.encoding,
                PeerTransfers(asker, relay, broadcasts),
            ),
            () if relay is None else (RelayServicer(relay),),
        )
