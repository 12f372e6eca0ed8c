"""Scaling of a pool of reward processes whose function waits."""

import json
import sys
from typing import Any

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.machine import environment
from tests.bench.process import run

_TIMEOUT_SECONDS = 600.0


def _run(bench: Bench) -> Outcome:
    counts = bench.pick((1, 2), (1, 2, 4), (1, 2, 4))
    seconds = bench.pick(0.002, 0.05, 0.05)
    samples = bench.pick(8, 256, 256)
    results: dict[int, dict[str, Any]] = {}
    for replicas in counts:
        result = bench.folder / f"replicas-{replicas}.json"
        command = [sys.executable, "-m", "tests.bench.peers.reward_pool"]
        command += [str(replicas), str(samples), str(seconds), str(result)]
        output = bench.folder / f"replicas-{replicas}.txt"
        run(command, output, environment(threads=1), _TIMEOUT_SECONDS, "pool")
        results[replicas] = json.loads(result.read_text())
        bench.say(f"{replicas} replicas: {results[replicas]['samples_per_second']:.1f} samples a second")
    alone = results[counts[0]]["samples_per_second"]
    rates = {replicas: each["samples_per_second"] for replicas, each in results.items()}
    figures = {f"of_limit_{replicas}": rate * seconds / replicas for replicas, rate in rates.items()}
    figures |= {f"of_linear_{replicas}": rate / (replicas * alone) for replicas, rate in rates.items()}
    figures["of_limit"] = min(figures[f"of_limit_{replicas}"] for replicas in rates)
    figures["of_linear"] = min(figures[f"of_linear_{replicas}"] for replicas in rates)
    return Outcome(figures, {"replicas": results, "seconds_per_sample": seconds})


LINES = (
    Line(
        "reward-pool",
        "a pool of 1, 2 and 4 processes of a reward function of 50 ms a sample",
        "as many functions that only wait",
        (Aim("of_limit", "of 20 samples a second and process, the least of them", 0.95),),
        _run,
    ),
)
