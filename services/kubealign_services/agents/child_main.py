"""Child process that runs the agents of a rollout worker.

Command line: `python -m kubealign_services.agents.child_main`.

Requests as in `environments.child_requests`. First line to the child: the target of the agent's function, as
in scoring/functions/protocol.py, which is imported when the reply arrives, or {"verifiers": OBJECT of the
spec}, whose environment is loaded then. Request: {"id": n, "session": s,
"call": "solve", "client": {...}, "row": {...}}, with the fields of AgentClient and AgentRow; its result is a
value of RewardResult.to_json.
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.spec.workflows.agents import VerifiersEnvironment
from kubealign_services.agents.verifiers.agent import VerifiersAgent
from kubealign_services.environments.child_requests import Handler, run_child
from kubealign_services.environments.contract import CallFailed
from kubealign_services.scoring.functions.child_main import FunctionError, describe_error, load_function
from kubealign_services.scoring.functions.results import InvalidResult, check_results

#: Number of positional arguments of an agent.
_ARGUMENTS = 2


class AgentError(CallFailed):
    """An agent cannot be used, raised an error, or returned no reward."""


async def _open_handler(line: bytes) -> Handler:
    """Return the call of the agent. Raises CallFailed."""
    target = json.loads(line)
    if "verifiers" in target:
        agent = await VerifiersAgent.open(VerifiersEnvironment.model_validate(target["verifiers"]))
        return partial(_solve, agent.solve)
    return partial(_solve, load_agent(target))


async def _solve(function: Callable[..., Any], request: dict[str, Any]) -> Any:
    return await run_agent(function, AgentClient(**request["client"]), AgentRow(**request["row"]))


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

    Raises AgentError, or the CallFailed of an agent of this package.
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
    except CallFailed:
        raise
    # Any error of the agent fails this response only.
    except (Exception, SystemExit) as error:
        raise AgentError(f"raised {describe_error(error)}") from error
    try:
        (result,) = check_results([returned], count=1)
    except InvalidResult as error:
        raise AgentError(str(error).replace(" for response 0", ""), permanent=True) from error
    return result.to_json()


if __name__ == "__main__":
    sys.exit(run_child(_open_handler))
