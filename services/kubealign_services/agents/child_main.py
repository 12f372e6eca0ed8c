"""Child process that runs the agents of a rollout worker.

Command line: `python -m kubealign_services.agents.child_main`.

One JSON object per line in each direction. First line to the child: the target of the agent's function, as in
scoring/functions/protocol.py; its reply is {"id": 0, "result": null} once the function is imported.
Request: {"id": n, "session": s, "call": "solve", "client": {...}, "row": {...}}, with the fields of
AgentClient and AgentRow.
Replies, in any order: {"id": n, "result": value of RewardResult.to_json} or {"id": n, "error": text,
"permanent": boolean}.

The process ends when its input or its parent ends, whatever the agents are doing.
"""

import asyncio
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

from kubealign.local.processes.parent_death import die_with_parent
from kubealign_services.agents.contract import AgentClient, AgentRow
from kubealign_services.runtime.process.reaper import run_and_kill_descendants
from kubealign_services.scoring.functions.child_main import (
    FunctionError,
    describe_error,
    load_function,
    private_pipes,
)
from kubealign_services.scoring.functions.results import InvalidResult, check_results

#: Number of positional arguments of an agent.
_ARGUMENTS = 2


class AgentError(Exception):
    """An agent cannot be used, raised an error, or returned no reward. `permanent`: a retry cannot help."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


def main() -> int:
    """Serve requests in a supervised child until the input ends."""
    die_with_parent(os.getppid(), signal.SIGTERM)
    return run_and_kill_descendants(lambda: asyncio.run(_serve()))


async def _serve() -> int:
    requests, replies = private_pipes()
    target = json.loads(requests.readline())
    try:
        function = load_agent(target)
    except AgentError as error:
        _reply(replies, {"id": 0, "error": str(error), "permanent": True})
        return 1
    _reply(replies, {"id": 0, "result": None})
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    threading.Thread(target=_read_requests, args=(requests, loop, lines), daemon=True).start()
    async with asyncio.TaskGroup() as calls:
        while True:
            calls.create_task(_answer(function, json.loads(await lines.get()), replies))


def load_agent(target: dict[str, Any]) -> Callable[..., Any]:
    """Load the function of an agent. Raises AgentError, permanent, also if it does not take two arguments."""
    try:
        function = load_function(target)
    except FunctionError as error:
        raise AgentError(str(error), permanent=True) from error
    try:
        inspect.signature(function).bind(*[None] * _ARGUMENTS)
    except TypeError as error:
        raise AgentError(
            f"takes {inspect.signature(function)}; an agent takes (client, row)", permanent=True
        ) from error
    return function


async def run_agent(function: Callable[..., Any], client: AgentClient, row: AgentRow) -> Any:
    """Run an agent and return the JSON value of its reward; a plain function runs in a thread of its own.

    Raises AgentError.
    """
    try:
        if inspect.iscoroutinefunction(function):
            returned = await function(client, row)
        else:
            thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent")
            try:
                returned = await asyncio.get_running_loop().run_in_executor(thread, function, client, row)
            finally:
                thread.shutdown(wait=False)
            if inspect.isawaitable(returned):
                returned = await returned
    # Any error of the agent fails this response only.
    except (Exception, SystemExit) as error:
        raise AgentError(f"raised {describe_error(error)}") from error
    try:
        (result,) = check_results([returned], count=1)
    except InvalidResult as error:
        raise AgentError(str(error).replace(" for response 0", ""), permanent=True) from error
    return result.to_json()


async def _answer(function: Callable[..., Any], request: dict[str, Any], replies: BinaryIO) -> None:
    """Reply to one request."""
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        reply["result"] = await run_agent(
            function, AgentClient(**request["client"]), AgentRow(**request["row"])
        )
    except AgentError as error:
        reply |= {"error": str(error), "permanent": error.permanent}
    _reply(replies, reply)


def _read_requests(
    requests: BinaryIO, loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[bytes]"
) -> None:
    for line in requests:
        loop.call_soon_threadsafe(lines.put_nowait, line)
    # The parent closed the pipe or ended; an agent may never return.
    os._exit(0)


def _reply(replies: BinaryIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    sys.exit(main())
