"""Checks a run after faults from its files alone, independent of the driver's own checks."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubealign_services.checkpoints.history import read_history
from support.chaos.job import NAME, PROMPTS_PER_STEP
from support.chaos.schedule import Fault, FaultKind
from support.running import RunningJobs, left_running, run_command, trained_steps

_REPLAY_SECONDS = 600.0


def check_run(run: RunningJobs, steps: int, faults: list[Fault]) -> None:
    """Check history, metrics, weights, processes and the reported causes of a run that has ended."""
    check_history(run.folder(NAME), steps)
    check_metrics(run.folder(NAME), steps)
    check_causes(run, faults)
    check_replay(run.folder(NAME), steps)
    assert left_running(run.runs) == {}


def check_history(run_dir: Path, steps: int) -> None:
    """Check that fences only grow, each step was made once, and each prompt was trained exactly once."""
    history = [json.loads(line.to_line()) for line in read_history(run_dir)]
    assert [line["step"] for line in history] == [*range(1, steps + 1)]
    fences = [line["fence"] for line in history]
    assert fences == sorted(fences)
    trained = sorted(prompt for line in history for prompt in line["prompts"])
    assert trained == sorted(f"0/{row}" for row in range(steps * PROMPTS_PER_STEP))


def check_metrics(run_dir: Path, steps: int) -> None:
    """Check that the last line of each step has finite metrics."""
    lines = trained_steps(run_dir)
    assert sorted(lines) == [*range(1, steps + 1)]
    for step, line in lines.items():
        values = [value for value in line.values() if isinstance(value, int | float)]
        assert all(math.isfinite(value) for value in values), (step, line)


def check_causes(run: RunningJobs, faults: list[Fault]) -> None:
    """Check that for each process that was killed a restart with this cause was reported."""
    messages = [event["message"] for event in _events(run.folder(NAME) / "events.jsonl")]
    killed = {fault.target for fault in faults if fault.kind in (FaultKind.KILL, FaultKind.WIPE_BUS)}
    for name in killed:
        # Ranks restart together, so that of two kills at once only one is reported.
        group = name.rpartition("-")[0] or name
        assert any(text.startswith(group) and "was killed by SIGKILL" in text for text in messages), (
            f"no restart of {name} was reported: {messages}"
        )


def check_replay(run_dir: Path, steps: int) -> None:
    """Check that training on the recorded batches alone gives the same metrics and weights bit for bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        replay = run_command(
            "replay", run_dir.name, "--runs-dir", str(run_dir.parent), timeout=_REPLAY_SECONDS
        )
    assert replay.code == 0, replay.output
    assert f"metrics of {steps} steps: equal bit for bit" in replay.output
    assert "final weights: equal bit for bit" in replay.output


def _events(path: Path) -> Iterator[dict[str, str]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)
