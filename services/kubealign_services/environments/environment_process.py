"""Process that runs environments or agents, seen from the rollout worker."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.environments.factory import describe_environment
from kubealign_services.scoring.functions.supervised_process import SupervisedProcess

_MODULE = "kubealign_services.environments.child_main"

#: Time limit of the start in seconds: the packages of environments may be large.
START_SECONDS = 180.0


class EnvironmentProcess:
    """One child process with the environments, or the agents, of several sessions.

    `sessions` is their number. A process that has exceeded a time limit is retired: it opens no further
    sessions, since a thread that hangs cannot be ended, and is closed with its last session.
    """

    def __init__(self, label: str, child: SupervisedProcess) -> None:
        self._child, self._label = child, label
        self._ids = itertools.count(1)
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.sessions = 0
        self.is_retired = False

    @classmethod
    async def start(cls, spec: EnvironmentSpec) -> "EnvironmentProcess":
        """Start a process and create an environment in it once.

        Raises EnvironmentFailed.
        """
        document = spec.model_dump(by_alias=True, exclude_none=True, mode="json")
        return await cls.start_program(_MODULE, describe_environment(spec), document)

    @classmethod
    async def start_program(
        cls, module: str, label: str, document: Mapping[str, Any]
    ) -> "EnvironmentProcess":
        """Start a module that answers calls as `environments.child_main` does.

        Args:
            label: Description of what it runs, for errors.
            document: First line of its input.

        Raises EnvironmentFailed.
        """
        process = cls(label, await SupervisedProcess.start(module, label))
        try:
            await process._start(document)
        except BaseException:
            await process.close()
            raise
        return process

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._child.pid

    @property
    def is_usable(self) -> bool:
        """True if sessions can be opened."""
        return not self.is_retired and self._child.is_running

    async def call(self, name: str, seconds: float, limit: str, session: int, **arguments: Any) -> Any:
        """Call the child and return the result.

        Args:
            name: Name of the call, as the child's module lists them.
            seconds: Time limit of the call. limit: name of the field with the time limit.

        Raises:
            EnvironmentFailed: The environment raised an error, its process ended, or the time limit was
                exceeded.
        """
        if self._reading is None or self._reading.done():
            raise self._lost()
        identity = next(self._ids)
        request = {"id": identity, "call": name, "session": session, **arguments}
        reply = self._replies[identity] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                # A process that has ended fails the reply.
                with contextlib.suppress(ConnectionError):
                    await self._child.write_line(json.dumps(request).encode())
                return await reply
        except TimeoutError:
            self.is_retired = True
            raise EnvironmentFailed(
                f"{self._label}: {name} of an episode did not end within {seconds:g} s ({limit})"
            ) from None
        finally:
            del self._replies[identity]

    async def close(self) -> None:
        """Kill the process within some seconds; calls in progress fail."""
        self.is_retired = True
        await self._child.close()
        if self._reading is not None:
            await self._reading

    async def _start(self, document: Mapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                with contextlib.suppress(ConnectionError):
                    await self._child.write_line(json.dumps(dict(document)).encode())
                line = await self._child.read_line()
        except TimeoutError:
            raise EnvironmentFailed(
                f"{self._label} could not be imported and created within {START_SECONDS:g} s", permanent=True
            ) from None
        if not line.endswith(b"\n"):
            await self._child.close()
            raise EnvironmentFailed(
                f"{self._label} ended its process at the start: {self._child.describe_exit()}", permanent=True
            )
        reply = json.loads(line)
        if "error" in reply:
            raise EnvironmentFailed(f"{self._label} {reply['error']}", permanent=True)
        self._reading = asyncio.create_task(self._read_replies())

    async def _read_replies(self) -> None:
        """Pass replies on until the process ends; then fail the calls that have none."""
        while (line := await self._child.read_line()).endswith(b"\n"):
            reply = json.loads(line)
            future = self._replies.get(reply["id"])
            if future is None or future.done():
                continue
            if "error" in reply:
                error = EnvironmentFailed(f"{self._label} {reply['error']}", permanent=reply["permanent"])
                future.set_exception(error)
            else:
                future.set_result(reply["result"])
        self.is_retired = True
        for future in self._replies.values():
            if not future.done():
                future.set_exception(self._lost())

    def _lost(self) -> EnvironmentFailed:
        return EnvironmentFailed(f"{self._label}: its process ended during the episode")
