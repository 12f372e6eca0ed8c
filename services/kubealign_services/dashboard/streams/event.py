"""A server-sent event, encoded once for all who get it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign_services.dashboard.wire import encode

#: What a browser waits before it connects again, in milliseconds.
RETRY = b"retry: 2000\n\n"
#: A comment, which nobody sees.
KEEP_ALIVE = b": still here\n\n"


@dataclass(frozen=True)
class Event:
    """`items`: what a `metrics` or a `samples` event holds, each with its entry."""

    name: str
    data: bytes
    items: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, name: str, content: Any) -> "Event":
        return cls(name, encode(content))

    @classmethod
    def with_items(cls, name: str, items: Sequence[Mapping[str, Any]]) -> "Event":
        return cls(name, encode({"items": items}), items)

    def frame(self, id: str) -> bytes:
        """As it goes over the wire. `id`: what the stream is resumed from."""
        return b"event: %b\nid: %b\ndata: %b\n\n" % (self.name.encode(), id.encode(), self.data)
