"""Streaming pieces of a part: from its sender, or from whom the sender names, and from another when that one
fails."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from kubealign.v1 import refit_pb2
from kubealign_services.refit.incoming import Incoming
from kubealign_services.refit.manifest import CorruptTransfer
from kubealign_services.refit.relay import Relay
from kubealign_services.refit.stream import OpenStream
from kubealign_services.rpc.errors import NotFound, Unreachable

log = logging.getLogger(__name__)

# A receiver that hands on says within two seconds that it is there.
_SILENT_SECONDS = 10.0


@dataclass(frozen=True)
class PartStreams:
    """How this process streams. timeout: seconds for one stream. asker: unique to the process; empty: it
    streams from senders alone. relay: what it hands on to others; None: nothing."""

    open_stream: OpenStream
    timeout: float
    asker: str = ""
    relay: Relay | None = None

    async def fill(
        self, sender: str, request: refit_pb2.FetchWeightsRequest, incoming: Incoming, tries: int
    ) -> None:
        """Get what is missing. sender: host:port of the rank that has the part. tries: how often it is asked
        when it fails. A receiver that fails is left for what the sender says next.

        Raises what the sender did last, with all causes: CorruptTransfer, NotFound, Unreachable."""
        lost: list[str] = []
        causes: list[str] = []
        source = sender
        while not incoming.whole:
            asked = refit_pb2.FetchWeightsRequest()
            asked.CopyFrom(request)
            asked.asker, asked.skip = self.asker, incoming.done
            asked.address = "" if self.relay is None else self.relay.address
            asked.lost.extend(lost)
            try:
                source = await self._from(source, sender, asked, incoming)
            except (CorruptTransfer, NotFound, Unreachable) as error:
                if source == sender:
                    causes.append(str(error))
                    if len(causes) == tries:
                        raise type(error)("; then ".join(dict.fromkeys(causes))) from error
                    continue
                log.warning("weights were not handed on", extra={"source": source, "cause": str(error)})
                lost.append(source)
                source = sender

    async def _from(
        self, source: str, sender: str, asked: refit_pb2.FetchWeightsRequest, incoming: Incoming
    ) -> str:
        """Take what the source sends. Returns whom to ask next."""
        incoming.restart()
        silent = None if source == sender else min(_SILENT_SECONDS, self.timeout / 4)
        before = incoming.received_bytes
        async with aclosing(self.open_stream(source, asked, self.timeout)) as chunks:
            while (chunk := await _next(chunks, source, silent)) is not None:
                if chunk.instead:
                    if source != sender:
                        raise CorruptTransfer(f"{source} hands on and does not have it itself")
                    return chunk.instead
                if chunk.data:
                    incoming.put(chunk.offset_bytes, chunk.data, source)
        if not incoming.whole:
            came = incoming.received_bytes - before
            missing = len(incoming.pieces) - incoming.done
            raise CorruptTransfer(f"{source} sent {came} bytes and ended; {missing} pieces are missing")
        return source


async def _next(
    chunks: AsyncGenerator[refit_pb2.WeightsChunk], source: str, silent: float | None
) -> refit_pb2.WeightsChunk | None:
    """None: that was all. Raises Unreachable after so many seconds without a word."""
    try:
        async with asyncio.timeout(silent):
            return await anext(chunks, None)
    except TimeoutError:
        raise Unreachable(f"{source} said nothing for {silent:g} s") from None
