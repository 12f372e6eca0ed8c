"""Sessions of a real OpenEnv server."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubealign.spec.workflows.environments import OpenEnvEnvironment
from kubealign_services.environments.adapters.open_env import OpenEnvSession
from kubealign_services.environments.contract import EnvironmentFailed, Observation
from support.environment_packages import needs_package
from support.free_address import free_port

pytestmark = needs_package("openenv", "openenv")

SERVER = """
import sys
import uvicorn
from openenv.core.env_server import Action, Environment, Observation, create_fastapi_app


class Guess(Action):
    message: str


class Hint(Observation):
    message: str


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, highest=20, **ignored):
        self.secret = seed % highest
        return Hint(message=f"a number below {highest}")

    def step(self, action, **ignored):
        guess = int(action.message)
        hint = "higher" if guess < self.secret else "lower"
        return Hint(message=hint, done=guess == self.secret, reward=float(guess == self.secret))

    @property
    def state(self):
        return None


app = create_fastapi_app(Game, Guess, Hint, max_concurrent_envs=4)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="info")
"""


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    port = free_port()
    path = tmp_path / "server.py"
    path.write_text(SERVER)
    server = await asyncio.create_subprocess_exec(
        sys.executable, str(path), str(port), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert server.stderr is not None
        async with asyncio.timeout(120):
            lines = [line async for line in _until(server.stderr, b"Uvicorn running")]
        assert lines and b"Uvicorn running" in lines[-1], lines
        yield f"http://127.0.0.1:{port}"
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


async def _until(stream: asyncio.StreamReader, text: bytes) -> AsyncIterator[bytes]:
    """Yield the lines up to the one with the text, or up to the end."""
    async for line in stream:
        yield line
        if text in line:
            return


async def test_sessions_of_one_server_are_apart(url: str) -> None:
    first, second = (OpenEnvSession(OpenEnvEnvironment(url=url), {"highest": 10}) for _ in range(2))
    assert await first.reset(13, {}) == Observation("a number below 10")
    assert await second.reset(18, {}) == Observation("a number below 10")
    assert (await first.step("5")).observation == Observation("lower")
    assert (await second.step("5")).observation == Observation("higher")
    last = await first.step("3")
    assert (last.reward, last.done) == (1.0, True)
    assert (await second.step("8")).done
    await first.close()
    await second.close()


async def test_a_field_that_the_observation_lacks_is_named(url: str) -> None:
    session = OpenEnvSession(OpenEnvEnvironment(url=url, observation_field="text"), {})
    with pytest.raises(
        EnvironmentFailed, match=r"openEnv\.observationField: .* no field text; it has .*message"
    ):
        await session.reset(1, {})
    await session.close()
