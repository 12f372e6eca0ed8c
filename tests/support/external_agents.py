"""Endpoint for external agents with scripted policies, for tests with real requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from transformers import PreTrainedTokenizerBase

from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.roles.rollout.agents.conversations import Conversations
from kubealign_services.roles.rollout.agents.external.pool import ExternalAgentPool
from kubealign_services.roles.rollout.agents.external.routes import SessionRoutes
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.agents.workflow import AgentWorkflow
from kubealign_services.roles.rollout.workflow.episode import Episode
from support.agent_sessions import ScriptedPolicy, make_episode

TOKEN = "agents' token"


@dataclass
class ExternalEndpoint:
    """An endpoint, and the episodes that it offers.

    `http` sends requests with the token.
    """

    url: str
    pool: ExternalAgentPool
    http: aiohttp.ClientSession
    _workflow: AgentWorkflow
    _tokenizer: PreTrainedTokenizerBase
    _running: list[asyncio.Task[Any]] = field(default_factory=list)

    def begin(self, *turns: str | Sequence[int], policy: Any = None, **columns: Any) -> asyncio.Task[Episode]:
        """Offer an episode whose policy generates these turns; the task returns it once it has ended."""
        prompt = list(self._tokenizer("what is", add_special_tokens=False)["input_ids"])
        episode = make_episode(self._tokenizer, policy or ScriptedPolicy(self._tokenizer, *turns), prompt)
        episode.columns.update(columns)

        async def run() -> Episode:
            await self._workflow(episode)
            return episode

        task = asyncio.create_task(run())
        self._running.append(task)
        return task

    async def post(self, path: str, body: Any = ..., token: str = TOKEN) -> tuple[int, Any]:
        """Post a JSON value, if any, below /sessions; return the status and the JSON value of the answer."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = None if body is ... else json.dumps(body)
        async with self.http.post(f"{self.url}/sessions{path}", data=data, headers=headers) as response:
            return response.status, await response.json() if await response.read() else None

    async def close(self) -> None:
        """Cancel the episodes that have not ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


@asynccontextmanager
async def serve_external(
    tokenizer: PreTrainedTokenizerBase, **fields: Any
) -> AsyncIterator[ExternalEndpoint]:
    """Serve external agents.

    Args:
        fields: Fields of rollout.workflow.agent.external, or timeoutSeconds.
    """
    limit = {"timeoutSeconds": fields.pop("timeoutSeconds")} if "timeoutSeconds" in fields else {}
    spec = AgentSpec.model_validate({"external": {"tokenVariable": "TOKEN"} | fields} | limit)
    pool = ExternalAgentPool(spec)
    async with AgentServer(SessionRoutes(pool, TOKEN)) as server, aiohttp.ClientSession() as http:
        workflow = AgentWorkflow(spec, server, pool, Conversations(tokenizer, {}, spec.parser), 1)
        endpoint = ExternalEndpoint(f"http://127.0.0.1:{server.port}", pool, http, workflow, tokenizer)
        try:
            yield endpoint
        finally:
            await endpoint.close()
