"""Environments in processes of their own: time limits, lost processes and sessions."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult
from kubealign_services.environments.pool import EnvironmentPool

pytestmark = pytest.mark.timeout(120)

GAMES = '''
import asyncio
import os
import threading

from kubealign_services.environments import Observation, StepResult


class Echo:
    """Answers with the seed, the columns and its process."""

    def __init__(self, greeting="hello"):
        self.greeting = greeting

    def reset(self, seed, columns):
        self.seed, self.columns, self.thread = seed, columns, threading.get_ident()
        return f"{self.greeting} {seed} {columns['name']}"

    def step(self, action):
        assert threading.get_ident() == self.thread, "another thread"
        if action == "exit":
            os._exit(3)
        if action == "hang":
            threading.Event().wait()
        if action == "raise":
            raise KeyError("no such move")
        if action == "bad":
            return 1.0
        return StepResult(action * 2, reward=self.seed, done=action == "end", metrics={"length": len(action)})

    def close(self):
        print("closed", self.seed, flush=True)


class Waiting:
    """Two episodes that meet: both steps run at once."""

    barrier = None

    async def reset(self, seed, columns):
        Waiting.barrier = Waiting.barrier or asyncio.Barrier(2)
        return Observation(messages=({"role": "user", "content": "wait"},))

    async def step(self, action):
        await self.barrier.wait()
        return StepResult("met", truncated=True)


def make_waiting():
    return Waiting()


class Slow:
    def reset(self, seed, columns):
        threading.Event().wait()

    def step(self, action):
        pass


class NoStep:
    def reset(self, seed, columns):
        pass


def broken():
    raise ValueError("no licence")
'''


@pytest.fixture
def games(tmp_path: Path) -> Path:
    path = tmp_path / "games.py"
    path.write_text(GAMES)
    return path


def spec(path: Path, name: str, **settings: Any) -> EnvironmentSpec:
    return EnvironmentSpec.model_validate(
        {"function": {"file": {"path": str(path), "name": name}}, **settings}
    )


async def test_an_episode_from_reset_to_close(games: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with EnvironmentPool(spec(games, "Echo", parameters={"greeting": "good day"})) as pool:
        async with pool.open(2**62 + 1, {"name": "Ann"}) as session:
            assert session.observation == Observation(f"good day {2**62 + 1} Ann")
            assert await session.step("ab") == StepResult(
                Observation("abab"), float(2**62 + 1), metrics={"length": 2.0}
            )
            assert (await session.step("end")).done
        (process,) = pool.processes
        assert process.sessions == 0
    assert f"printed: closed {2**62 + 1}" in caplog.text


async def test_coroutine_functions_of_several_episodes_run_at_once(games: Path) -> None:
    async with EnvironmentPool(spec(games, "make_waiting")) as pool:

        async def play() -> StepResult:
            async with pool.open(1, {}) as session:
                assert session.observation == Observation(messages=({"role": "user", "content": "wait"},))
                return await session.step("")

        first, second = await asyncio.gather(play(), play())
    assert first == second == StepResult(Observation("met"), truncated=True)


async def test_sessions_go_to_the_process_with_the_fewest_and_wait_for_room(games: Path) -> None:
    async with EnvironmentPool(spec(games, "Echo", processes=2, concurrency=1)) as pool:
        is_full, may_end = asyncio.Event(), asyncio.Event()

        async def occupy() -> None:
            async with pool.open(2, {"name": "b"}):
                assert [process.sessions for process in pool.processes] == [1, 1]
                is_full.set()
                await may_end.wait()

        async def play() -> float:
            async with pool.open(3, {"name": "c"}) as session:
                assert may_end.is_set()
                assert [process.sessions for process in pool.processes] == [1, 1]
                return (await session.step("x")).reward

        async with pool.open(1, {"name": "a"}):
            occupying = asyncio.create_task(occupy())
            await is_full.wait()
            playing = asyncio.create_task(play())
            await asyncio.sleep(0)
            may_end.set()
            assert await playing == 3.0
            await occupying


async def test_an_error_fails_its_episode_only(games: Path) -> None:
    async with (
        EnvironmentPool(spec(games, "Echo")) as pool,
        pool.open(1, {"name": "a"}) as session,
        pool.open(2, {"name": "b"}) as other,
    ):
        expected = (
            rf"environment Echo of {games} step raised KeyError: 'no such move' \({games}, line \d+: raise"
        )
        with pytest.raises(EnvironmentFailed, match=expected):
            await session.step("raise")
        with pytest.raises(EnvironmentFailed, match=r"step returned 1\.0 \(float\), not a StepResult"):
            await session.step("bad")
        assert (await other.step("x")).reward == 2.0


async def test_a_step_beyond_its_time_limit_retires_the_process(games: Path) -> None:
    async with EnvironmentPool(spec(games, "Echo", stepTimeoutSeconds=0.5)) as pool:
        async with pool.open(1, {"name": "a"}) as other:
            with pytest.raises(
                EnvironmentFailed,
                match=r"step of an episode did not end within 0\.5 s \(stepTimeoutSeconds\)",
            ):
                async with pool.open(2, {"name": "b"}) as session:
                    await session.step("hang")
            # The other episode of the process goes on, and the next one is in a new process.
            assert (await other.step("x")).reward == 1.0
            async with pool.open(3, {"name": "c"}) as third:
                assert (await third.step("x")).reward == 3.0
            retired, fresh = pool.processes
            assert (retired.is_usable, fresh.is_usable) == (False, True)
        async with pool.open(4, {"name": "d"}):
            assert pool.processes == (fresh,)
        with pytest.raises(ProcessLookupError):
            os.kill(retired.pid, 0)


async def test_a_reset_beyond_its_time_limit(games: Path) -> None:
    async with EnvironmentPool(spec(games, "Slow", resetTimeoutSeconds=0.5)) as pool:
        with pytest.raises(
            EnvironmentFailed, match=r"open of an episode did not end within 0\.5 s \(resetTimeoutSeconds\)"
        ):
            async with pool.open(1, {}):
                pass


async def test_a_lost_process_fails_its_own_episodes_and_is_replaced(games: Path) -> None:
    async with EnvironmentPool(spec(games, "Echo", processes=2)) as pool:
        async with pool.open(1, {"name": "a"}) as lost, pool.open(2, {"name": "b"}) as other:
            hanging = asyncio.create_task(lost.step("hang"))
            await asyncio.sleep(0)
            os.kill(pool.processes[0].pid, signal.SIGKILL)
            for step in (hanging, lost.step("x")):
                with pytest.raises(EnvironmentFailed, match="its process ended during the episode"):
                    await step
            assert (await other.step("x")).reward == 2.0
        async with pool.open(3, {"name": "c"}) as third, pool.open(4, {"name": "d"}) as fourth:
            assert [(await each.step("x")).reward for each in (third, fourth)] == [3.0, 4.0]
        assert [process.is_usable for process in pool.processes] == [True, True]


async def test_an_environment_that_ends_its_process(games: Path) -> None:
    async with EnvironmentPool(spec(games, "Echo")) as pool:
        async with pool.open(1, {"name": "a"}) as session:
            with pytest.raises(EnvironmentFailed, match="its process ended during the episode"):
                await session.step("exit")
        async with pool.open(1, {"name": "a"}) as session:
            assert (await session.step("x")).reward == 1.0


async def test_a_cancelled_episode_leaves_no_session(games: Path) -> None:
    async with EnvironmentPool(spec(games, "Waiting", processes=1, concurrency=1)) as pool:
        is_open = asyncio.Event()

        async def play() -> None:
            async with pool.open(1, {}) as session:
                is_open.set()
                await session.step("")

        task = asyncio.create_task(play())
        await is_open.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.processes[0].sessions == 0


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("Missing", {}, "is not defined there; it defines: broken, make_waiting"),
        ("NoStep", {}, r"is a NoStep, which has no method step; an environment has reset\(seed, columns\)"),
        ("broken", {}, "its creation raised ValueError: no licence"),
        ("Echo", {"parameters": {"size": 3}}, "got an unexpected keyword argument 'size'"),
    ],
)
async def test_an_environment_that_cannot_be_created_is_refused_at_the_start(
    games: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=message) as raised:
        async with EnvironmentPool(spec(games, name, **settings)):
            pass
    assert raised.value.permanent


async def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "reasoning_gym.py").write_text("import a_module_that_nobody_has\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    missing = EnvironmentSpec.model_validate({"reasoningGym": {"dataset": "chain_sum"}})
    with pytest.raises(EnvironmentFailed, match=r"pip install 'kubealign\[reasoning-gym\]'"):
        async with EnvironmentPool(missing):
            pass
