"""Runs agents outside a job's rollout workers: in another pod, in a service, or on a laptop."""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import aiohttp

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.agents.endpoint_client import (
    EndpointClient,
    EndpointLost,
    EndpointRefused,
    RewardRefused,
    SessionEnded,
    TakenSession,
)

__all__ = ["EndpointLost", "EndpointRefused", "serve_agent", "serve_agent_async"]

log = logging.getLogger(__name__)

#: Time limit in seconds for telling the worker that this process stops.
_FAREWELL_SECONDS = 2.0

#: Function `solve(client, row)`, plain or async, that returns the reward, as in a rollout worker.
Agent = Callable[[AgentClient, AgentRow], Any]


def serve_agent(
    url: str | Sequence[str],
    token: str,
    function: Agent,
    *,
    concurrency: int = 8,
    unreachable_seconds: float | None = 60.0,
) -> None:
    """Run an agent on the responses of a job until the job's endpoints are gone.

    Args:
        url: Address of a rollout worker's endpoint, or one for each worker, such as http://127.0.0.1:8400.
        token: Value of the variable `rollout.workflow.agent.external.tokenVariable` of the workers.
        function: Agent; one that is no coroutine function runs in a thread of its own.
        concurrency: Agents of each endpoint that run at once.
        unreachable_seconds: Time after which an endpoint that does not answer counts as gone; None: never.

    Raises:
        EndpointLost: An endpoint was never reached.
        EndpointRefused: An endpoint refuses the token, or is none of a rollout worker.
    """
    asyncio.run(
        serve_agent_async(
            url, token, function, concurrency=concurrency, unreachable_seconds=unreachable_seconds
        )
    )


async def serve_agent_async(
    url: str | Sequence[str],
    token: str,
    function: Agent,
    *,
    concurrency: int = 8,
    unreachable_seconds: float | None = 60.0,
) -> None:
    """Run an agent as `serve_agent`, in a running event loop. Sessions fail when the task is cancelled."""
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}: it must be at least 1")
    urls = [url] if isinstance(url, str) else list(url)
    # Each agent has one connection of its own, besides its heartbeats.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        endpoints = [EndpointClient(http, each, token, unreachable_seconds) for each in urls]
        served = [asyncio.create_task(_serve_endpoint(each, function, concurrency)) for each in endpoints]
        try:
            await asyncio.gather(*served)
        finally:
            await _cancel(served)


async def _serve_endpoint(endpoint: EndpointClient, function: Agent, concurrency: int) -> None:
    """Run agents of one endpoint until it is gone. Raises EndpointLost, EndpointRefused."""
    slots = [asyncio.create_task(_serve_sessions(endpoint, function)) for _ in range(concurrency)]
    try:
        await asyncio.gather(*slots)
    except EndpointLost as error:
        if not endpoint.was_reached:
            raise
        log.info("%s: its job has ended, or its worker was lost", error)
    finally:
        await _cancel(slots)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _serve_sessions(endpoint: EndpointClient, function: Agent) -> None:
    """Run one agent after the other. Raises EndpointLost, EndpointRefused."""
    while True:
        session = await endpoint.take()
        if session is not None:
            try:
                await _run_session(endpoint, session, function)
            except SessionEnded as error:
                log.warning("%s", error)


async def _run_session(endpoint: EndpointClient, session: TakenSession, function: Agent) -> None:
    """Run the agent of a session and end the session.

    Raises EndpointLost, EndpointRefused, SessionEnded.
    """
    agent = asyncio.create_task(_call(function, session.client, session.row))
    heartbeats = asyncio.create_task(_send_heartbeats(endpoint, session))
    try:
        await asyncio.wait({agent, heartbeats}, return_when=asyncio.FIRST_COMPLETED)
        if not agent.done():
            # The session has ended, or the endpoint is gone.
            heartbeats.result()
        await _end(endpoint, session, agent)
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, SessionEnded, EndpointLost, EndpointRefused):
            async with asyncio.timeout(_FAREWELL_SECONDS):
                await endpoint.fail(session, "the process that ran the agent was stopped")
        raise
    finally:
        for task in (agent, heartbeats):
            task.cancel()
        await asyncio.gather(agent, heartbeats, return_exceptions=True)


async def _end(endpoint: EndpointClient, session: TakenSession, agent: asyncio.Task[Any]) -> None:
    """Post the result of an agent that has ended.

    Raises EndpointLost, EndpointRefused, SessionEnded.
    """
    error = RuntimeError("it was cancelled") if agent.cancelled() else agent.exception()
    if error is None:
        try:
            await endpoint.reward(session, agent.result())
            return
        except RewardRefused as refusal:
            error = refusal
    log.warning("the agent of session %s failed: %s", session.id, error, exc_info=error)
    await endpoint.fail(session, f"{type(error).__name__}: {error}")


async def _send_heartbeats(endpoint: EndpointClient, session: TakenSession) -> None:
    """Send heartbeats until the session ends. Raises EndpointLost, EndpointRefused, SessionEnded."""
    while True:
        await asyncio.sleep(session.heartbeat_seconds)
        await endpoint.heartbeat(session)


async def _call(function: Agent, client: AgentClient, row: AgentRow) -> Any:
    """Call an agent and return its reward. Raises its errors; that it exits is a RuntimeError."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(client, row)
        returned = await _run_in_thread(function, client, row)
        return await returned if inspect.isawaitable(returned) else returned
    except SystemExit as error:
        raise RuntimeError(f"the agent exited: {error!r}") from error


async def _run_in_thread(function: Agent, client: AgentClient, row: AgentRow) -> Any:
    """Call a function in a daemon thread: one that hangs does not keep the process from its end."""
    call: Future[Any] = Future()

    def run() -> None:
        try:
            result = function(client, row)
        # Any error of the agent fails this session only.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            call.set_exception(error)
        else:
            call.set_result(result)

    call.set_running_or_notify_cancel()
    threading.Thread(target=run, name="agent", daemon=True).start()
    return await asyncio.wrap_future(call)
