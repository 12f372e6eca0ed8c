"""Failpoints: once each, in the named process, at the named hit, and every name has one place."""

import ast
import errno
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import kubealign_services
from kubealign_services.runtime.failpoints import FILE, Action, Failpoint, arm_failpoints, failpoint

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def run_dir(tmp_path: Path):
    yield tmp_path
    (tmp_path / FILE).unlink(missing_ok=True)
    arm_failpoints(tmp_path, "driver")


def write(run_dir: Path, *entries: dict[str, object]) -> None:
    (run_dir / FILE).write_text(json.dumps(entries))


def test_without_a_file_nothing_fails(run_dir: Path) -> None:
    arm_failpoints(run_dir, "driver")
    for name in Failpoint:
        failpoint(name)
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize("action", [Action.EIO, Action.ENOSPC])
def test_an_error_at_the_second_hit_and_never_again(run_dir: Path, action: Action) -> None:
    write(run_dir, {"name": "bus-before-ack", "action": action, "process": "driver", "hit": 2})
    arm_failpoints(run_dir, "driver")
    failpoint(Failpoint.BUS_BEFORE_ACK)
    failpoint(Failpoint.BUS_AFTER_ACK)
    with pytest.raises(OSError, match="failpoint bus-before-ack") as raised:
        failpoint(Failpoint.BUS_BEFORE_ACK)
    assert raised.value.errno == getattr(errno, action.upper())
    # Also for a process that starts afterwards.
    arm_failpoints(run_dir, "driver")
    for _ in range(4):
        failpoint(Failpoint.BUS_BEFORE_ACK)


def test_other_processes_go_on(run_dir: Path) -> None:
    write(run_dir, {"name": "bus-before-ack", "action": "Eio", "process": "driver"})
    arm_failpoints(run_dir, "rollout-0")
    failpoint(Failpoint.BUS_BEFORE_ACK)


@pytest.mark.parametrize(("action", "code"), [(Action.KILL, "-9"), (Action.STOP, "0")], ids=["kill", "stop"])
def test_kill_and_stop(run_dir: Path, action: Action, code: str) -> None:
    write(run_dir, {"name": "step-after-train", "action": action})
    program = f"""
import pathlib, time
from kubealign_services.runtime import failpoints
failpoints.STOP_SECONDS = 0.3
failpoints.arm_failpoints(pathlib.Path({str(run_dir)!r}), "driver")
begun = time.monotonic()
failpoints.failpoint(failpoints.Failpoint.STEP_AFTER_TRAIN)
assert time.monotonic() - begun >= 0.3
"""
    run = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert str(run.returncode) == code


@pytest.mark.parametrize(
    "entry", [{"name": "nowhere", "action": "Kill"}, {"name": "export-after", "action": "Sleep"}]
)
def test_unknown_names_are_refused(run_dir: Path, entry: dict[str, str]) -> None:
    write(run_dir, entry)
    with pytest.raises(ValueError, match=r"nowhere|Sleep"):
        arm_failpoints(run_dir, "driver")


def test_every_failpoint_has_one_place() -> None:
    places: Counter[str] = Counter()
    for path in Path(kubealign_services.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "failpoint":
                (argument,) = node.args
                assert isinstance(argument, ast.Attribute), f"{path}: name the failpoint"
                places[argument.attr] += 1
    assert places == Counter(name.name for name in Failpoint)
