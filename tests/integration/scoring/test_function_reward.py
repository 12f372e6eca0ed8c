"""Reward functions in their own process: output, errors and termination."""

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kubealign.spec.sections.rewards import RewardFunction
from kubealign_services.scoring.functions.function_reward import (
    BadReward,
    FunctionReward,
    RewardHung,
    RewardMissing,
    RewardRaised,
)
from kubealign_services.scoring.functions.results import RewardResult
from support.reward_results import scored

pytestmark = pytest.mark.timeout(60)

Make = Callable[..., FunctionReward]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def of(source: str, timeout: float = 20, name: str = "reward") -> FunctionReward:
        file = tmp_path / "given.py"
        file.write_text(source)
        return FunctionReward(
            RewardFunction.model_validate({"file": {"path": str(file), "name": name}}), timeout, "helpful"
        )

    return of


def wait_until_gone(pid: int, seconds: float = 20) -> None:
    """Wait for the end of a process that is not this one's child."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([ended], [], [], seconds)[0], f"process {pid} still runs"
    finally:
        os.close(ended)


async def test_scores_with_columns_and_prints(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    source = """
import os, sys
def reward(prompts, responses, **columns):
    print("to standard output", flush=True)
    os.write(1, b"and past Python\\n")
    assert sys.stdin.read() == ""
    return [float(r == a) for r, a in zip(responses, columns["answer"])]
"""
    async with make(source) as function:
        assert await scored(function, ["p", "q"], ["7", "é\n"], {"answer": ["7", "e"]}) == [1.0, 0.0]
        assert await scored(function, ["p"], ["x"], {"answer": ["x"]}) == [1.0]
    printed = [record.getMessage() for record in caplog.records if "printed" in record.getMessage()]
    assert any("to standard output" in line and "helpful" in line for line in printed)
    assert any("and past Python" in line for line in printed)


async def test_a_coroutine_function_with_metrics_and_explanations(make: Make) -> None:
    source = """
import asyncio
async def one(response):
    await asyncio.sleep(0.2)
    return {"reward": None, "metrics": {"length": len(response)}, "explanation": "\\u00e9" + response}
async def reward(prompts, responses):
    # Each of them after the other would take longer than the timeout.
    return await asyncio.gather(*map(one, responses))
"""
    async with make(source, timeout=5) as function:
        responses = [str(i) for i in range(64)]
        results = await function.score(["p"] * 64, responses, {})
    assert results == [RewardResult(None, {"length": len(text)}, f"é{text}") for text in responses]


async def test_large_requests_and_many_callers(make: Make) -> None:
    async with make("def reward(prompts, responses): return [len(r) for r in responses]") as function:
        sizes = [[1000 * i + j for j in range(300)] for i in range(5)]
        answers = await asyncio.gather(
            *(scored(function, [""] * 300, ["x" * size for size in part], {}) for part in sizes)
        )
    assert answers == sizes


async def test_raised_error_is_not_permanent_and_the_next_call_works(make: Make) -> None:
    source = "def reward(prompts, responses):\n    return [int(r) for r in responses]\n"
    async with make(source) as function:
        with pytest.raises(RewardRaised) as caught:
            await scored(function, ["p"], ["seven"], {})
        assert not caught.value.permanent
        for part in ("reward helpful", "given.py", "ValueError", "return [int(r) for r in responses]"):
            assert part in str(caught.value)
        assert await scored(function, ["p"], ["7"], {}) == [7.0]


async def test_crash_is_reported_and_the_process_restarts(make: Make) -> None:
    source = """
import os
import select
def reward(prompts, responses):
    if responses[0] == "crash":
        os.kill(os.getpid(), 11)
    if responses[0] == "leave":
        os._exit(5)
    return [1.0]
"""
    async with make(source) as function:
        with pytest.raises(RewardRaised, match="signal SIGSEGV"):
            await scored(function, ["p"], ["crash"], {})
        with pytest.raises(RewardRaised, match="exit code 5"):
            await scored(function, ["p"], ["leave"], {})
        assert await scored(function, ["p"], ["fine"], {}) == [1.0]


async def test_hanging_function_is_killed_with_its_descendants(make: Make, tmp_path: Path) -> None:
    source = f"""
import pathlib, subprocess, sys, time, os
def reward(prompts, responses):
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path({str(tmp_path / "pids")!r}).write_text(f"{{os.getpid()}} {{helper.pid}}")
    time.sleep(600)
"""
    function = make(source, timeout=2)
    async with function:
        with pytest.raises(RewardHung, match=r"did not answer within 2 s") as caught:
            await scored(function, ["p"], ["r"], {})
        assert not caught.value.permanent
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


#: Starts a helper in a session of its own, which keeps standard error open; `daemon`: as an orphan.
HELPERS = """
import os, pathlib, subprocess, sys, time
PIDS = pathlib.Path({pids!r})
def start_helper(daemon):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    if not daemon:
        helper = subprocess.Popen(command, start_new_session=True).pid
    else:
        start = (
            "import subprocess, sys; "
            "print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL).pid)"
        )
        output = subprocess.run([sys.executable, "-c", start, *command], stdout=subprocess.PIPE, check=True)
        helper = int(output.stdout)
    PIDS.write_text(f"{{os.getpid()}} {{helper}}")
def hangs(prompts, responses):
    start_helper(daemon=False)
    time.sleep(600)
def leaves_a_daemon(prompts, responses):
    start_helper(daemon=True)
    time.sleep(600)
def crashes(prompts, responses):
    start_helper(daemon=True)
    os._exit(5)
def returns(prompts, responses):
    start_helper(daemon=True)
    return [1.0]
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted and found on Linux only")
@pytest.mark.parametrize("name", ["hangs", "leaves_a_daemon", "crashes", "returns"])
async def test_no_helper_outlives_the_function(make: Make, tmp_path: Path, name: str) -> None:
    """Check that the call returns and every helper ends, also helpers that a signal to the group does not
    reach and that hold the function's standard error."""
    pids = tmp_path / "pids"
    function = make(HELPERS.format(pids=str(pids)), timeout=2, name=name)
    try:
        async with asyncio.timeout(30):
            async with function:
                if name == "returns":
                    assert await scored(function, ["p"], ["r"], {}) == [1.0]
                else:
                    with pytest.raises(RewardRaised if name == "crashes" else RewardHung):
                        await scored(function, ["p"], ["r"], {})
        for pid in pids.read_text().split():
            wait_until_gone(int(pid), seconds=5)
    finally:
        for pid in pids.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


async def test_a_helper_that_the_supervisor_cannot_kill_does_not_hold_up_the_call(
    make: Make, tmp_path: Path
) -> None:
    """Check the deadline of the end: the supervisor itself is stopped, and its helper holds the pipes."""
    pids = tmp_path / "pids"
    source = HELPERS.format(pids=str(pids)) + (
        "def stops(prompts, responses):\n"
        "    start_helper(daemon=False)\n"
        "    os.kill(os.getppid(), 19)\n"
        "    time.sleep(600)\n"
    )
    try:
        async with asyncio.timeout(30), make(source, timeout=2, name="stops") as function:
            with pytest.raises(RewardHung):
                await scored(function, ["p"], ["r"], {})
    finally:
        for pid in pids.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


async def test_the_function_is_not_named_on_a_command_line(make: Make) -> None:
    """Check the command lines and environments of the function's process and its supervisor: a plugin's
    parameters are sent like the function's name, and may be secret."""
    source = """
import os, pathlib
def reward_of_secrets(prompts, responses):
    read = [
        pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
        for pid in (os.getpid(), os.getppid())
        for name in ("cmdline", "environ")
    ]
    return [float(sum(b"reward_of_secrets" in text or b"given.py" in text for text in read))]
"""
    async with make(source, name="reward_of_secrets") as function:
        assert await scored(function, ["p"], ["r"], {}) == [0.0]


async def test_a_wrong_length_is_permanent(make: Make) -> None:
    async with make("def reward(prompts, responses): return [1.0]") as function:
        with pytest.raises(BadReward, match="returned 1 rewards for 2 responses") as caught:
            await scored(function, ["p", "q"], ["r", "s"], {})
        assert caught.value.permanent
    async with make("def reward(prompts, responses): yield 1.0") as function:
        with pytest.raises(BadReward, match="not a list"):
            await scored(function, ["p"], ["r"], {})


async def test_missing_functions_are_reported_at_start(make: Make) -> None:
    with pytest.raises(RewardMissing, match=r"reward helpful: other of .*given.py.*it defines: reward"):
        await make("def reward(prompts, responses): return []", name="other").start()
    with pytest.raises(RewardMissing, match="no_such_package"):
        await FunctionReward(RewardFunction(module="no_such_package:f"), 5, "x").start()
    mounted = RewardFunction.model_validate({"configMap": {"name": "sums", "key": "s.py", "function": "f"}})
    with pytest.raises(RewardMissing, match=r"reward x: f of /etc/kubealign/functions/sums/s\.py"):
        await FunctionReward(mounted, 5, "x").start()


async def test_cancelling_a_call_does_not_mix_up_answers(make: Make) -> None:
    source = """
import time
def reward(prompts, responses):
    time.sleep(float(prompts[0]))
    return [len(responses[0])]
"""
    async with make(source) as function:
        assert await scored(function, ["0"], ["a"], {}) == [1.0]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scored(function, ["600"], ["bb"], {}), 1)
        assert await scored(function, ["0"], ["ccc"], {}) == [3.0]


@pytest.mark.skipif(sys.platform != "linux", reason="a signal on the parent's death is Linux's")
def test_the_process_dies_with_its_parent_even_in_a_loop(tmp_path: Path) -> None:
    """Check the end during a loop inside a C function, where no other thread runs that could notice the end
    of the input."""
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    file = tmp_path / "loops.py"
    file.write_text(
        "import os, pathlib, re\n"
        "def reward(prompts, responses):\n"
        f"    pathlib.Path({str(pipe)!r}).write_text(str(os.getpid()))\n"
        "    re.match('(a+)+$', 'a' * 80 + 'b')\n"
    )
    program = (
        "import asyncio\n"
        "from kubealign.spec.sections.rewards import RewardFunction\n"
        "from kubealign_services.scoring.functions.function_reward import FunctionReward\n"
        f"spec = RewardFunction.model_validate({{'file': {{'path': {str(file)!r}}}}})\n"
        "asyncio.run(FunctionReward(spec, 300).score(['p'], ['r'], {}))\n"
    )
    text = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert select.select([text], [], [], 40)[0], "the function was not called"
        child = int(os.read(text, 32))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        os.close(text)
    try:
        wait_until_gone(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
