"""What one reader gets of a list's changes."""

from collections.abc import AsyncIterator, Collection

from kubealign_services.dashboard.streams.event import RETRY, Event
from kubealign_services.dashboard.streams.hub import Hub
from kubealign_services.dashboard.streams.journal import FellBehind


async def list_stream(hub: Hub, namespaces: Collection[str] | None, last: str) -> AsyncIterator[bytes]:
    """Frames, of these namespaces (None: of all), after the event id `last` (empty: from now on). Where what
    was missed is not known any more, the first event is `reset`: list again."""
    yield RETRY
    with hub.jobs() as feed:
        await feed.ready.wait()
        position = feed.journal.position
        began, _, number = last.partition(":")
        resumed = began == feed.began and number.isdigit() and feed.journal.keeps(int(number))
        if resumed:
            position = int(number)
        # The first id, so that a reader who is cut off before any change misses nothing either.
        first = Event.of("reset" if last and not resumed else "ready", {})
        yield first.frame(f"{feed.began}:{position}")
        try:
            async for after, (namespace, job, place) in feed.journal.follow(position):
                if namespaces is not None and namespace not in namespaces:
                    continue
                event = (
                    Event("jobs", b'{"items":[' + job + b"]}")
                    if job is not None
                    else Event.of("gone", {"items": [place]})
                )
                yield event.frame(f"{feed.began}:{after}")
        except FellBehind:
            return
