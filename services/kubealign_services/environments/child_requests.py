"""Requests to a child process that runs a user's code, answered concurrently.

One JSON object per line in each direction. The first line to the child describes the code; its reply is
{"id": 0, "result": null} once the code can be called. Requests are {"id": n, ...}; their replies, in any
order, {"id": n, "result": value} or {"id": n, "error": text, "permanent": boolean}.
"""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, BinaryIO

from kubealign.local.processes.parent_death import die_with_parent
from kubealign_services.environments.contract import CallFailed
from kubealign_services.runtime.process.reaper import run_and_kill_descendants
from kubealign_services.scoring.functions.child_main import private_pipes

#: Returns the JSON value of a request's result. Raises CallFailed.
Handler = Callable[[dict[str, Any]], Awaitable[Any]]


def run_child(open_handler: Callable[[bytes], Awaitable[Handler]]) -> int:
    """Answer requests in a supervised child; return its exit status.

    The process ends when its input or its parent ends, whatever the code is doing.

    Args:
        open_handler: Called with the first line. Raises CallFailed where the code cannot be called.
    """
    die_with_parent(os.getppid(), signal.SIGTERM)
    return run_and_kill_descendants(lambda: asyncio.run(_serve(open_handler)))


async def _serve(open_handler: Callable[[bytes], Awaitable[Handler]]) -> int:
    requests, replies = private_pipes()
    try:
        handle = await open_handler(requests.readline())
    except CallFailed as error:
        _reply(replies, {"id": 0, "error": str(error), "permanent": True})
        return 1
    _reply(replies, {"id": 0, "result": None})
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_requests, args=(requests, loop, lines), daemon=True).start()
    async with asyncio.TaskGroup() as calls:
        while True:
            calls.create_task(_answer(handle, json.loads(await lines.get()), replies))


async def _answer(handle: Handler, request: dict[str, Any], replies: BinaryIO) -> None:
    """Reply to one request."""
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        reply["result"] = await handle(request)
    except CallFailed as error:
        reply |= {"error": str(error), "permanent": error.permanent}
    _reply(replies, reply)


def _read_requests(
    requests: BinaryIO, loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[bytes]"
) -> None:
    for line in requests:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    # The parent closed the pipe or ended; a call may never return.
    os._exit(0)


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()
