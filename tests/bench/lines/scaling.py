"""Scaling of rollout throughput with workers whose decoding is replayed from a trace of our engine."""

import json
import sys
from typing import Any

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import peer
from tests.bench.machine import environment
from tests.bench.process import run

_TIMEOUT_SECONDS = 900.0


def _run(bench: Bench) -> Outcome:
    workload = bench.tailed
    folder = bench.folder / "workload"
    workload.write(folder, 2)
    bench.say("a trace of our engine")
    lines, _ = peer("our_generation", [], "kubealign")(folder, 2, bench.folder / "trace")
    trace = bench.folder / "trace.json"
    trace.write_text(json.dumps({"capacity": workload.sequences, "finished": lines[-1]["finished"]}))
    counts = bench.pick((1, 2), (1, 2, 4, 8), (1, 2, 4, 8))
    steps = bench.pick(2, 4, 8)
    results: dict[int, dict[str, Any]] = {}
    for workers in counts:
        result = bench.folder / f"workers-{workers}.json"
        command = [sys.executable, "-m", "tests.bench.peers.replayed_rollout"]
        command += [str(trace), str(workers), str(steps), str(result)]
        output = bench.folder / f"workers-{workers}.txt"
        run(command, output, environment(threads=1), _TIMEOUT_SECONDS, "workers")
        results[workers] = json.loads(result.read_text())
        bench.say(f"{workers} workers: {results[workers]['tokens_per_second']:.0f} tokens a second")
    alone = results[counts[0]]["tokens_per_second"]
    shares = {workers: each["tokens_per_second"] / (workers * alone) for workers, each in results.items()}
    figures = {f"of_linear_{workers}": share for workers, share in shares.items()}
    figures |= {
        "of_linear": min(shares.values()),
        "tokens_per_second_1": alone,
        "driver_cpu_share": max(each["driver_cpu_share"] for each in results.values()),
    }
    return Outcome(figures, {"workers": results, "workload": vars(workload)})


LINES = (
    Line(
        "scaling",
        "rollout throughput with 1, 2, 4 and 8 workers, decoding a timed wait of a real trace",
        "linear",
        (Aim("of_linear", "of linear, the least of them", 0.95),),
        _run,
    ),
)
