"""Streams pieces of a part from its sender, or from the relay that the sender names, and from another one
when that fails.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from kubealign.v1 import refit_pb2
from kubealign_services.runtime.rpc.errors import NotFound, Unreachable
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.receive.part_assembler import PartAssembler
from kubealign_services.weights.transfer.stream.peer_streams import OpenStream
from kubealign_services.weights.transfer.stream.relay import Relay

log = logging.getLogger(__name__)

# A relay sends a keepalive chunk every two seconds.
_SILENCE_SECONDS = 10.0


@dataclass(frozen=True)
class PartStreamer:
    """Streams of this process.

    timeout: seconds for one stream. asker: unique to the process; empty to stream from senders only.
    relay: serves received pieces to other receivers; None to serve nothing.
    """

    open_stream: OpenStream
    timeout: float
    asker: str = ""
    relay: Relay | None = None

    async def fill(
        self, sender: str, request: refit_pb2.FetchWeightsRequest, assembler: PartAssembler, tries: int
    ) -> None:
        """Fetch the missing pieces.

        A relay that fails is replaced by the source that the sender names next.

        Args:
            sender: host:port of the rank that has the part.
            tries: Attempts at the sender.

        Raises:
            CorruptTransfer, NotFound, Unreachable: The last error of the sender, with all causes.
        """
        failed_relays: list[str] = []
        causes: list[str] = []
        source = sender
        while not assembler.is_complete:
            attempt = refit_pb2.FetchWeightsRequest()
            attempt.CopyFrom(request)
            attempt.asker, attempt.skip = self.asker, assembler.verified_count
            attempt.address = "" if self.relay is None else self.relay.address
            attempt.lost.extend(failed_relays)
            try:
                source = await self._stream_from(source, sender, attempt, assembler)
            except (CorruptTransfer, NotFound, Unreachable) as error:
                if source == sender:
                    causes.append(str(error))
                    if len(causes) == tries:
                        raise type(error)("; then ".join(dict.fromkeys(causes))) from error
                    continue
                log.warning("a weights relay failed", extra={"source": source, "cause": str(error)})
                failed_relays.append(source)
                source = sender

    async def _stream_from(
        self, source: str, sender: str, request: refit_pb2.FetchWeightsRequest, assembler: PartAssembler
    ) -> str:
        """Receive from one source. Returns the source to use next."""
        assembler.restart()
        silent = None if source == sender else min(_SILENCE_SECONDS, self.timeout / 4)
        before = assembler.received_bytes
        async with aclosing(self.open_stream(source, request, self.timeout)) as chunks:
            while (chunk := await _next_chunk(chunks, source, silent)) is not None:
                if chunk.instead:
                    if source != sender:
                        raise CorruptTransfer(f"{source} is a relay and redirected the request")
                    return chunk.instead
                if chunk.data:
                    assembler.put(chunk.offset_bytes, chunk.data, source)
        if not assembler.is_complete:
            received = assembler.received_bytes - before
            missing = len(assembler.pieces) - assembler.verified_count
            raise CorruptTransfer(f"{source} sent {received} bytes and ended; {missing} pieces are missing")
        return source


async def _next_chunk(
    chunks: AsyncGenerator[refit_pb2.WeightsChunk], source: str, silent: float | None
) -> refit_pb2.WeightsChunk | None:
    """Return the next chunk, or None at the end. Raises Unreachable after `silent` seconds of silence."""
    try:
        async with asyncio.timeout(silent):
            return await anext(chunks, None)
    except TimeoutError:
        raise Unreachable(f"{source} sent nothing for {silent:g} s") from None
