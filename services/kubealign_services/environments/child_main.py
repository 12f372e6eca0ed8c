"""Child process that runs the environments of a rollout worker.

Command line: `python -m kubealign_services.environments.child_main`.

One JSON object per line in each direction. First line to the child: the environment of the job's spec; its
reply is {"id": 0, "result": null} once an environment could be created.
Requests: {"id": n, "session": s, "call": "open", "seed": n, "columns": {name: value}}, {"id": n, "session":
s, "call": "step", "action": text} and {"id": n, "session": s, "call": "close"}.
Replies, in any order: {"id": n, "result": value} or {"id": n, "error": text, "permanent": boolean}.

The process ends when its input or its parent ends, whatever the environments are doing.
"""

import asyncio
import json
import os
import signal
import sys
import threading
from typing import Any, BinaryIO

from kubealign.local.processes.parent_death import die_with_parent
from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.environments.factory import load_environment
from kubealign_services.environments.sessions import EnvironmentSessions
from kubealign_services.runtime.process.reaper import run_and_kill_descendants
from kubealign_services.scoring.functions.child_main import private_pipes


def main() -> int:
    """Serve requests in a supervised child until the input ends."""
    die_with_parent(os.getppid(), signal.SIGTERM)
    return run_and_kill_descendants(lambda: asyncio.run(_serve()))


async def _serve() -> int:
    requests, replies = private_pipes()
    spec = EnvironmentSpec.model_validate_json(requests.readline())
    try:
        sessions = EnvironmentSessions(load_environment(spec))
        await sessions.check()
    except EnvironmentFailed as error:
        _reply(replies, {"id": 0, "error": str(error), "permanent": True})
        return 1
    _reply(replies, {"id": 0, "result": None})
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_requests, args=(requests, loop, lines), daemon=True).start()
    async with asyncio.TaskGroup() as calls:
        while True:
            calls.create_task(_answer(sessions, json.loads(await lines.get()), replies))


async def _answer(sessions: EnvironmentSessions, request: dict[str, Any], replies: BinaryIO) -> None:
    """Reply to one request."""
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        reply["result"] = await _call(sessions, request)
    except EnvironmentFailed as error:
        reply |= {"error": str(error), "permanent": error.permanent}
    _reply(replies, reply)


async def _call(sessions: EnvironmentSessions, request: dict[str, Any]) -> Any:
    if request["call"] == "open":
        return await sessions.open(request["session"], request["seed"], request["columns"])
    if request["call"] == "step":
        return await sessions.step(request["session"], request["action"])
    return await sessions.close(request["session"])


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


if __name__ == "__main__":
    sys.exit(main())
