"""The stream of one reader of the job list."""

from collections.abc import AsyncIterator, Collection

from kubealign_dashboard.streams.hub import Hub
from kubealign_dashboard.streams.journal import ReaderFellBehind
from kubealign_dashboard.streams.server_sent_event import RETRY, ServerSentEvent


async def list_stream(hub: Hub, namespaces: Collection[str] | None, last: str) -> AsyncIterator[bytes]:
    """Yield the frames of the changes in these namespaces (None: all).

    If the changes since `last` are no longer kept, the first event is `reset`: list again.

    Args:
        last: Id of the last received event; empty: from now on.
    """
    yield RETRY
    with hub.follow_list() as feed:
        await feed.ready.wait()
        position = feed.journal.position
        journal_id, _, number = last.partition(":")
        is_resumed = journal_id == feed.journal_id and number.isdigit() and feed.journal.contains(int(number))
        if is_resumed:
            position = int(number)
        # The first id: a reader that is cut off before any change misses nothing either.
        first = ServerSentEvent.encode("reset" if last and not is_resumed else "ready", {})
        yield first.frame(f"{feed.journal_id}:{position}")
        try:
            async for after, (namespace, job, reference) in feed.journal.follow(position):
                if namespaces is not None and namespace not in namespaces:
                    continue
                event = (
                    ServerSentEvent("jobs", b'{"items":[' + job + b"]}")
                    if job is not None
                    else ServerSentEvent.encode("gone", {"items": [reference]})
                )
                yield event.frame(f"{feed.journal_id}:{after}")
        except ReaderFellBehind:
            return
