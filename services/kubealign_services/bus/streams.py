"""The streams and consumers of a server, made by whoever needs them first, and again when the server has lost
them."""

from collections.abc import Mapping

import nats.js.errors
from nats.js import JetStreamContext, api

from kubealign_services.bus.bounds import Bounds
from kubealign_services.bus.losses import Losses

_OTHER_CONFIGURATION = 10058


class Streams:
    """What is known to be there since the connection was made. `losses` is told of streams that are not the
    ones of before."""

    def __init__(self, losses: Losses, dedup_window: float) -> None:
        self.bounds: Mapping[str, Bounds] = {}
        self._losses = losses
        self._dedup_window = dedup_window
        # Subjects, and consumers as SUBJECT.NAME.
        self._there: set[str] = set()
        self._connections = 0

    def reconnecting(self) -> None:
        """The connection is lost: who knows what there is at the end of the next."""
        self._connections += 1
        self.doubt()

    def doubt(self) -> None:
        """Something was not there: look again."""
        self._there.clear()

    async def stream(self, context: JetStreamContext, subject: str) -> None:
        """See to the subject's stream. Raises nats.errors.Error."""
        if subject in self._there:
            return
        limit = self.bounds[subject]
        config = api.StreamConfig(
            name=subject,
            subjects=[subject],
            retention=api.RetentionPolicy.LIMITS,
            discard=api.DiscardPolicy.OLD,
            storage=api.StorageType.FILE,
            max_msgs=limit.messages,
            max_bytes=limit.size_bytes,
            duplicate_window=self._dedup_window,
        )
        connection = self._connections
        try:
            stream = await context.add_stream(config)
        except nats.js.errors.BadRequestError as error:
            # Whoever came first has set it up, with bounds of its own.
            if error.err_code != _OTHER_CONFIGURATION:
                raise
            stream = await context.stream_info(subject)
        if connection == self._connections:
            # Else this is the answer of a server that may be no more.
            self._there.add(subject)
            await self._losses.born(subject, stream.created)

    async def consumer(
        self, context: JetStreamContext, subject: str, name: str, config: api.ConsumerConfig
    ) -> None:
        """See to a consumer of the subject's stream, and to the stream. Raises nats.errors.Error."""
        await self.stream(context, subject)
        key = f"{subject}.{name}"
        if key in self._there:
            return
        connection = self._connections
        await context.add_consumer(subject, config)
        if connection == self._connections:
            self._there.add(key)
