"""Opens the reward of another server that the spec names."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubealign.spec.sections.score_calls import ScoreCalls
from kubealign_services.scoring.sandbox_server.documents import PROGRAMS_PATH
from kubealign_services.scoring.servers.contract import ServerReward
from kubealign_services.scoring.servers.endpoint import Endpoint
from kubealign_services.scoring.servers.http_reward import HttpServerReward
from kubealign_services.scoring.servers.judge.judge_reward import CHAT_PATH, JudgedReward, ServerModel
from kubealign_services.scoring.servers.program_reward import ProgramReward

#: Requests of a comparison, whose two orders are asked for at the same time.
_REQUESTS_PER_CALL = 2


@asynccontextmanager
async def open_server_reward(reward: ScoreCalls) -> AsyncIterator[ServerReward]:
    """Open the connections of a reward, or a validation score, that another server gives.

    Raises PermanentFailure where a credential is missing.
    """
    connections = _REQUESTS_PER_CALL * reward.calls_in_flight
    if reward.http is not None:
        name = f"reward {reward.name}: http"
        url, timeout = reward.http.url, reward.timeout_seconds
        async with Endpoint(name, reward.http, url, timeout, connections) as endpoint:
            yield HttpServerReward(reward.name, endpoint)
        return
    if reward.sandbox_server is not None:
        assert reward.verifier is not None and reward.verifier.code is not None
        code, server = reward.verifier.code, reward.sandbox_server
        name, url = f"reward {reward.name}: verifier code", server.url.rstrip("/") + PROGRAMS_PATH
        columns = list(reward.named_columns().values())
        async with Endpoint(name, server, url, reward.timeout_seconds, reward.calls_in_flight) as endpoint:
            yield ProgramReward(name, code, columns, endpoint)
        return
    assert reward.judge is not None
    name, url = f"reward {reward.name}: judge", reward.judge.url.rstrip("/") + CHAT_PATH
    async with Endpoint(name, reward.judge, url, reward.timeout_seconds, connections) as endpoint:
        judge = JudgedReward(reward.judge, ServerModel(reward.judge, endpoint))
        try:
            yield judge
        finally:
            await judge.close()
