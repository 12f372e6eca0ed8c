"""Lifetime of the environments that an agent of verifiers serves, with environments that count."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign_services.agents.verifiers import agent as agent_module
from kubealign_services.agents.verifiers.agent import VerifiersAgent
from kubealign_services.agents.verifiers.environment import EnvironmentConfig

LIMIT = 2
ROW = AgentRow("what is", {"task_index": 0}, 1)


class CountedEnvironments:
    """Environments whose rollouts end when they may; `events` has the openings and closings in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.keys: asyncio.Queue[str] = asyncio.Queue()
        self.may_end = asyncio.Event()
        self._count = 0

    def load_environment(self, value: Any) -> Any:
        self._count += 1
        name = str(self._count)

        @asynccontextmanager
        async def serving() -> AsyncIterator[None]:
            self.events.append(f"open {name}")
            yield
            self.events.append(f"close {name}")

        async def run_slot(slot: Any, context: Any) -> Any:
            self.keys.put_nowait(os.environ[context.endpoint.api_key_var])
            await self.may_end.wait()
            reward = SimpleNamespace(score=1.0, weight=1.0)
            trace = SimpleNamespace(
                agent=SimpleNamespace(name="solver"), rewards={"right": reward}, reward=1.0, metrics={}
            )
            return SimpleNamespace(ok=True, traces=[trace], errors=[])

        return SimpleNamespace(serving=serving, slots=lambda task: [task], run_slot=run_slot)

    def load_taskset(self, value: Any) -> list[Any]:
        return [SimpleNamespace(key="k")]

    def EvalClientConfig(self, **settings: str) -> Any:
        return SimpleNamespace(**settings)

    def ModelContext(self, model: str, endpoint: Any) -> Any:
        return SimpleNamespace(model=model, endpoint=endpoint)


async def test_an_environment_is_replaced_after_its_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose rollouts run is closed with the last of them, and each rollout has its session's key."""
    monkeypatch.setattr(agent_module, "_MAX_ROLLOUTS", LIMIT)
    package = CountedEnvironments()
    agent = VerifiersAgent(EnvironmentConfig(package, SimpleNamespace(taskset=None), "solver"))
    clients = [AgentClient("http://127.0.0.1:1/v1", f"key {number}", "policy") for number in range(3)]
    running = [asyncio.create_task(agent.solve(client, ROW)) for client in clients]
    async with asyncio.timeout(20):
        assert [await package.keys.get() for _ in clients] == ["key 0", "key 1", "key 2"]
        assert package.events == ["open 1", "open 2"]
        package.may_end.set()
        await asyncio.gather(*running)
        assert package.events == ["open 1", "open 2", "close 1"]
        for client in clients[:LIMIT]:
            await agent.solve(client, ROW)
        # The second was idle when the third replaced it.
        assert package.events == ["open 1", "open 2", "close 1", "open 3", "close 2"]
        await agent.close()
    assert package.events[-1] == "close 3"
    assert not [name for name in os.environ if name.startswith("KUBEALIGN_POLICY_API_KEY")]
