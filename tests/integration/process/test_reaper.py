"""The init process of a container: returns its child's exit code, forwards signals, reaps orphans."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(60)

Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(scenario: str) -> subprocess.Popen[str]:
        program = Path(__file__).with_name("reaped.py")
        process = subprocess.Popen(
            [sys.executable, str(program), scenario], stdout=subprocess.PIPE, text=True, process_group=0
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        # Also ends its child when the test has failed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(("scenario", "code"), [("fails", 78), ("is_killed", 137)])
def test_exit_code_of_the_child_is_returned(start: Start, scenario: str, code: int) -> None:
    assert start(scenario).wait(30) == code


@pytest.mark.parametrize(("scenario", "code"), [("waits", 143), ("handles_the_signal", 7)])
def test_signals_are_forwarded(start: Start, scenario: str, code: int) -> None:
    process = start(scenario)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == code


def test_orphans_are_reaped(start: Start) -> None:
    assert start("leaves_an_orphan").wait(30) == 0
