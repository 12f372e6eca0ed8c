"""Creates the streams and consumers of a server on first use, and again when the server has lost them."""

from collections import Counter
from collections.abc import Mapping

import nats.js.errors
from nats.js import JetStreamContext, api

from kubealign_services.messaging.lost_streams import StreamLossTracker
from kubealign_services.messaging.retention_limits import Bounds

_OTHER_CONFIGURATION = 10058


class StreamRegistry:
    """Streams and consumers that exist on the server, as far as checked since the last connect.

    Reports recreated streams to the loss tracker.
    """

    def __init__(self, losses: StreamLossTracker, dedup_window: float) -> None:
        self.bounds: Mapping[str, Bounds] = {}
        self.updates_bounds = True
        self._lost_streams = losses
        self._dedup_window = dedup_window
        # Existing streams by subject, and consumers as SUBJECT.NAME.
        self._existing: set[str] = set()
        self._connections = 0
        # Number of purges that this connection has begun or ended, by subject.
        self._purge_events: Counter[str] = Counter()
        # Subject -> number of the last message that a purge of this connection has deleted.
        self._purged_to: dict[str, int] = {}

    def on_disconnect(self) -> None:
        """Forget all checks after a lost connection: the next server may have other streams."""
        self._connections += 1
        self._purged_to.clear()
        self.invalidate()

    def invalidate(self) -> None:
        """Forget all checks, so that streams and consumers are created again."""
        self._existing.clear()

    def era(self, subject: str) -> tuple[int, int]:
        """Return a value that changes when consumers of the subject may move otherwise than by deliveries:
        at a purge by this connection, and where the server may have been restarted or replaced.
        """
        return self._connections, self._purge_events[subject]

    def purged_to(self, subject: str) -> int | None:
        """Return the number of the last message that this connection has purged; None if it purged none."""
        return self._purged_to.get(subject)

    async def purge(self, context: JetStreamContext, subject: str) -> None:
        """Delete the messages of the subject's stream. Raises nats.errors.Error."""
        await self.ensure_stream(context, subject)
        connection = self._connections
        self._purge_events[subject] += 1
        try:
            await context.purge_stream(subject)
            first = (await context.stream_info(subject)).state.first_seq
            if connection == self._connections:
                self._purged_to[subject] = max(1, first) - 1
        finally:
            self._purge_events[subject] += 1

    async def ensure_stream(self, context: JetStreamContext, subject: str) -> None:
        """Create the subject's stream unless it exists. Raises nats.errors.Error."""
        if subject in self._existing:
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
            # Another process has created the stream, with its own bounds. One without access to the prepared
            # data knows no columns, so its bounds may be smaller.
            if error.err_code != _OTHER_CONFIGURATION:
                raise
            stream = await context.stream_info(subject)
            present = Bounds(stream.config.max_msgs or 0, stream.config.max_bytes or 0)
            larger = present.combine(limit)
            if self.updates_bounds and larger != present:
                config.max_msgs, config.max_bytes = larger.messages, larger.size_bytes
                stream = await context.update_stream(config)
        if connection == self._connections:
            # Otherwise the answer came from an earlier connection, whose server may have been replaced.
            self._existing.add(subject)
            await self._lost_streams.record_creation(subject, stream.created)

    async def ensure_consumer(
        self, context: JetStreamContext, subject: str, name: str, config: api.ConsumerConfig
    ) -> None:
        """Create a consumer of the subject's stream, and the stream, unless they exist.

        Raises nats.errors.Error.
        """
        await self.ensure_stream(context, subject)
        key = f"{subject}.{name}"
        if key in self._existing:
            return
        connection = self._connections
        await context.add_consumer(subject, config)
        if connection == self._connections:
            self._existing.add(key)
