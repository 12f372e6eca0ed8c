"""A server-sent event, encoded once for all readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign_dashboard.web.json_response import encode

#: Reconnection delay of browsers, in milliseconds.
RETRY = b"retry: 2000\n\n"
#: A comment, which readers ignore.
KEEP_ALIVE = b": still here\n\n"


@dataclass(frozen=True)
class ServerSentEvent:
    """A server-sent event. `items`: content of a `metrics` or `samples` event, each item with its entry."""

    name: str
    data: bytes
    items: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def encode(cls, name: str, content: Any) -> "ServerSentEvent":
        return cls(name, encode(content))

    @classmethod
    def with_items(cls, name: str, items: Sequence[Mapping[str, Any]]) -> "ServerSentEvent":
        return cls(name, encode({"items": items}), items)

    def frame(self, id: str) -> bytes:
        """Return the event as sent. `id`: position from which the stream can be resumed."""
        return b"event: %b\nid: %b\ndata: %b\n\n" % (self.name.encode(), id.encode(), self.data)
