"""Watchdog of an event loop that code with the interpreter lock blocks."""

import subprocess
import sys

PROGRAM = """
import asyncio, re, sys
from kubealign_services.runtime.process.loop_watchdog import watch_event_loop

async def work():
    await asyncio.sleep(0)
    if sys.argv[1] == "blocks":
        # A loop in C that keeps the interpreter lock for years.
        re.match("(a+)+$", "a" * 80 + "b")
    else:
        await asyncio.sleep(1)

async def main():
    watchdog = asyncio.create_task(watch_event_loop(0.5))
    await asyncio.sleep(0)
    await work()
    watchdog.cancel()

asyncio.run(main())
"""


def run(case: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, case], capture_output=True, text=True, timeout=30)


def test_a_blocked_process_ends_with_its_stacks() -> None:
    ended = run("blocks")
    assert ended.returncode == 1
    assert "in work" in ended.stderr


def test_a_loop_that_runs_is_left_alone() -> None:
    ended = run("runs")
    assert (ended.returncode, ended.stderr) == (0, "")
