"""Watchdog that ends a process whose event loop is blocked, also by code that holds the interpreter lock."""

import asyncio
import faulthandler

#: The kubelet waits as long for the answer to a liveness probe.
BLOCKED_SECONDS = 120.0


async def watch_event_loop(seconds: float = BLOCKED_SECONDS) -> None:
    """Until cancelled, have the process print the stacks of all threads and exit with code 1 once the event
    loop has been blocked for `seconds`.

    A process has one such watchdog. Its timer is a thread of C code that needs no interpreter lock
    (faulthandler.dump_traceback_later).
    """
    try:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True)
            await asyncio.sleep(seconds / 10)
    finally:
        faulthandler.cancel_dump_traceback_later()
