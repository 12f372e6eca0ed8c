"""Episodes that are running in the environments' process."""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubealign_services.environments.contract import (
    Environment,
    EnvironmentFailed,
    observation_to_json,
    result_to_json,
)
from kubealign_services.scoring.functions.child_main import describe_error
from kubealign_services.scoring.functions.results import InvalidResult


class EnvironmentSessions:
    """Environments by session. Values go in and out as JSON.

    Args:
        create: Creates the environment of an episode.
    """

    def __init__(self, create: Callable[[], Environment]) -> None:
        self._create = create
        self._sessions: dict[int, _RunningEnvironment] = {}

    async def check(self) -> None:
        """Create an environment. Raises EnvironmentFailed, permanent, if that fails."""
        session = _RunningEnvironment()
        try:
            await session.create(self._create)
        except EnvironmentFailed as error:
            error.permanent = True
            raise
        finally:
            await session.close()

    async def open(self, identity: int, seed: int, columns: dict[str, Any]) -> dict[str, Any]:
        """Create and reset an environment; return the first observation. Raises EnvironmentFailed."""
        session = self._sessions[identity] = _RunningEnvironment()
        await session.create(self._create)
        return await session.call("reset", observation_to_json, seed, columns)

    async def step(self, identity: int, action: str) -> dict[str, Any]:
        """Return the result of a step. Raises EnvironmentFailed."""
        return await self._sessions[identity].call("step", result_to_json, action)

    async def close(self, identity: int) -> None:
        """Close the environment of a session, if there is one. Raises EnvironmentFailed."""
        session = self._sessions.pop(identity, None)
        if session is not None:
            await session.close()


class _RunningEnvironment:
    """Environment of one episode, with a thread of its own for methods that are no coroutine functions.

    Calls are serialised.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="environment")
        self._environment: Environment | None = None
        self._was_reset = False

    async def create(self, create: Callable[[], Environment]) -> None:
        """Create the environment. Raises EnvironmentFailed, also where it lacks a method."""
        environment = await self._run("its creation", create)
        missing = [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]
        if missing:
            raise EnvironmentFailed(
                f"is a {type(environment).__name__}, which has no method {' and no method '.join(missing)}; "
                "an environment has reset(seed, columns) and step(action)",
                permanent=True,
            )
        self._environment = environment

    async def call(
        self, method: str, to_json: Callable[[Any], dict[str, Any]], *arguments: Any
    ) -> dict[str, Any]:
        """Call a method and return its checked result. Raises EnvironmentFailed."""
        self._was_reset = True
        returned = await self._run(method, getattr(self._environment, method), *arguments)
        try:
            return to_json(returned)
        except InvalidResult as error:
            raise EnvironmentFailed(f"{method} {error}", permanent=True) from error

    async def close(self) -> None:
        """Close an environment that was reset, and end the thread once it is idle.

        Raises EnvironmentFailed.
        """
        try:
            close = getattr(self._environment, "close", None)
            if close is not None and self._was_reset:
                await self._run("close", close)
        finally:
            self._thread.shutdown(wait=False)

    async def _run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            async with self._lock:
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                loop = asyncio.get_running_loop()
                returned = await loop.run_in_executor(self._thread, function, *arguments)
                return await returned if inspect.isawaitable(returned) else returned
        except EnvironmentFailed:
            raise
        # Any error of the environment fails this episode only.
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(f"{name} raised {describe_error(error)}") from error
