"""Asynchronous steps against synchronous ones, with rollout worker and trainer on one core each."""

import os
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench import jobs, kubealign_side
from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import Peer, detail, in_turn
from tests.bench.machine import job_environment
from tests.bench.pinned import pinned
from tests.bench.reward_gap import RewardGap, reward_gap
from tests.bench.side import Side
from tests.bench.watch import Usage
from tests.bench.workload import Workload

_TIMEOUT_SECONDS = 3600.0
_STALENESS = 2


def _pinned(workload: Workload, rollout: int, trainer: int) -> Peer:
    """Return a peer that runs the job with its rollout worker and its trainer pinned to a core, one thread
    each."""

    def steps(_: Path, count: int, own: Path) -> tuple[list[dict[str, Any]], Usage]:
        folder = own.parent / "workload"
        job = jobs.online(workload, folder, kubealign_side.NAME, count)
        around_run = partial(pinned, cores={"rollout": rollout, "trainer": trainer})
        return kubealign_side.measure(job, own, _TIMEOUT_SECONDS, around_run, job_environment(threads=1))

    return steps


def _run(bench: Bench) -> Outcome:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise RuntimeError("needs two cores, one for the rollout worker and one for the trainer")
    seeds = range(1, 1 + bench.pick(1, 1, 3))
    runs, gaps = [], []
    for seed in seeds:
        # High enough that the reward changes within the run.
        base = bench.tailed.doing(learning_rate=1e-3, seed=seed)
        sides, weights = _sides(replace(bench, folder=bench.folder / f"seed-{seed}"), base, cores)
        runs.append((sides, detail(sides, base, weights)))
        gaps.append(reward_gap(sides[0].steps, sides[1].steps, base.sequences))
    later = [line for (_, side), _ in runs for line in side.steps]
    figures = {
        "times": statistics.median(_pace(late) / _pace(sync) for (sync, late), _ in runs),
        "reward_sync": statistics.mean(gap.base for gap in gaps),
        "reward_async": statistics.mean(gap.other for gap in gaps),
        "reward_gap": statistics.mean(gap.gap for gap in gaps),
        "reward_gap_error": RewardGap.error_of_mean(gaps),
        "staleness": statistics.mean(line.get("rollout/staleness", 0.0) for line in later),
        "discarded": sum(line.get("data/discarded_groups", 0.0) for line in later),
    }
    note = (
        f"rewards {figures['reward_sync']:.3f} and {figures['reward_async']:.3f}, mean of the seeds "
        f"{seeds[0]} to {seeds[-1]}; the standard error of their difference is "
        f"{figures['reward_gap_error']:.4f}"
    )
    return Outcome(figures, {"runs": [each for _, each in runs]}, [note])


def _sides(bench: Bench, base: Workload, cores: list[int]) -> tuple[list[Side], int]:
    """Run both jobs. The asynchronous job makes as many additional steps as its samples are stale, so that
    both jobs sample from the same last policy version."""
    bench.folder.mkdir()
    warmup, steps = bench.pick((1, 4), (2, 14), (2, 10))
    return in_turn(
        bench,
        base,
        [
            (f"staleness {most}", _pinned(base.doing(max_staleness=most), *cores[:2]), warmup, steps + most)
            for most in (0, _STALENESS)
        ],
    )


def _pace(side: Side) -> float:
    """Return steps per second between the ends of the first and of the last step, because steps overlap."""
    return float((len(side.steps) - 1) / (side.steps[-1]["time"] - side.steps[0]["time"]))


LINES = (
    Line(
        "async",
        f"asynchronous steps with staleness {_STALENESS}, long-tailed answers, rollout and trainer on a core "
        "each",
        "synchronous steps of the same job",
        (
            Aim("times", "times the steps a second", 1.5),
            Aim("reward_gap", "reward after the same samples, less the synchronous job's", -0.02),
        ),
        _run,
    ),
)
