"""Asynchronous steps beside synchronous ones: rollout and trainer on one core each."""

import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import jobs, kubealign_side
from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import Peer, detail, in_turn
from tests.bench.machine import job_environment
from tests.bench.pinned import pinned
from tests.bench.watch import Usage
from tests.bench.workload import Workload

_TIMEOUT_SECONDS = 3600.0


def _pinned(workload: Workload, rollout: int, trainer: int) -> Peer:
    """The job, its rollout worker and its trainer on a core each, one thread each."""

    def steps(_: Path, count: int, own: Path) -> tuple[list[dict[str, Any]], Usage]:
        folder = own.parent / "workload"
        job = jobs.online(workload, folder, kubealign_side.NAME, count)
        beside = partial(pinned, cores={"rollout": rollout, "trainer": trainer})
        return kubealign_side.measure(job, own, _TIMEOUT_SECONDS, beside, job_environment(threads=1))

    return steps


def _run(bench: Bench) -> Outcome:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("needs two cores, one for the rollout worker and one for the trainer")
    # A rate at which the reward moves within the run.
    base = bench.tailed.doing(learning_rate=1e-3)
    warmup, steps = bench.pick((1, 2), (2, 14), (2, 10))
    sides, weights = in_turn(
        bench,
        base,
        [
            (f"staleness {most}", _pinned(base.doing(max_staleness=most), *cores[:2]), warmup, steps)
            for most in (0, 2)
        ],
    )
    pace = {side.name: _steps_per_second(side.steps) for side in sides}
    last = {side.name: statistics.mean(line["reward/mean"] for line in side.steps[-3:]) for side in sides}
    figures = {
        "times": pace["staleness 2"] / pace["staleness 0"],
        "reward_sync": last["staleness 0"],
        "reward_async": last["staleness 2"],
        "reward_gap": last["staleness 2"] - last["staleness 0"],
        "staleness": statistics.mean(line.get("rollout/staleness", 0.0) for line in sides[1].steps),
        "discarded": sum(line.get("data/discarded_groups", 0.0) for line in sides[1].steps),
    }
    return Outcome(figures, detail(sides, base, weights))


def _steps_per_second(steps: list[dict[str, Any]]) -> float:
    """From the end of the first to that of the last: steps overlap."""
    return (len(steps) - 1) / (steps[-1]["time"] - steps[0]["time"])


LINES = (
    Line(
        "async",
        "asynchronous steps with staleness 2, long-tailed answers, rollout and trainer on a core each",
        "synchronous steps of the same job",
        (
            Aim("times", "times the steps a second", 1.5),
            Aim("reward_gap", "reward after the same samples, less the synchronous job's", -0.02),
        ),
        _run,
    ),
)
