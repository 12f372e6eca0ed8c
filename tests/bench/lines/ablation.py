"""Duration of a PPO step without overlap and without weights by shared memory, and of its generation without
a common pool of prompts: the rows of NeMo-Aligner's ablation (Shen et al. 2024, arXiv 2405.01481, table 4).

Two of its rows have no counterpart: an engine that is built anew for each version of the weights, and weights
through files. The torch engine always takes weights in place.
"""

import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import GRADIENT_NORM, check_same_work, detail, kubealign, peer, side_by_side
from tests.bench.machine import environment
from tests.bench.process import run
from tests.bench.side import Side
from tests.bench.workload import Workload

_TIMEOUT_SECONDS = 900.0
_WORKERS = 2
_ALL = "everything on"
#: Loads of all workers in a step of the pool: only what no worker has begun can be balanced.
_LOADS = 2


def _without_overlap(spec: dict[str, Any]) -> None:
    spec["overlap"] = {"scoreOnArrival": False, "parallelScoring": False, "parallelTraining": False}


def _without_shared_memory(spec: dict[str, Any]) -> None:
    spec["rollout"]["refit"] = {"transport": "Stream"}


#: Figure -> (name of the side, change of the spec). Each side is compared with a side that has everything on.
_SWITCHES: dict[str, tuple[str, Callable[[dict[str, Any]], None]]] = {
    "without_overlap": ("without overlap", _without_overlap),
    "without_shared_memory": ("weights by stream", _without_shared_memory),
}


def _run(bench: Bench) -> Outcome:
    base = bench.tailed
    workload = base.doing(method="ppo", prompts_per_step=base.sequences, samples_per_prompt=1)
    figures: dict[str, float] = {}
    details: dict[str, Any] = {}
    for figure, (name, change) in _SWITCHES.items():
        sides, details[figure] = _pair(bench, workload, figure, name, change)
        full, other = (side.step_seconds for side in sides)
        figures |= {f"full_{figure}": full, figure: other, f"times_{figure}": other / full}
    pool, details["pool"] = _pool(bench, workload)
    figures |= pool
    notes = [
        *(
            f"{name}: {figures[figure]:.2f} s a step, everything on {figures[f'full_{figure}']:.2f} s"
            for figure, (name, _) in _SWITCHES.items()
        ),
        f"static split of the prompts: {pool['static_pool']:.2f} s of generation, pulled "
        f"{pool['pool']:.2f} s",
        "not switched: an engine that is built anew for each version, and weights through files",
    ]
    return Outcome(figures, details, notes)


def _pair(
    bench: Bench, workload: Workload, figure: str, name: str, change: Callable[[dict[str, Any]], None]
) -> tuple[list[Side], dict[str, Any]]:
    """Run the job with everything on and the changed job by turns. Return both sides and the detail.

    Two at a time, because a job needs up to a quarter of the machine's memory.
    """
    own = replace(bench, folder=bench.folder / figure)
    own.folder.mkdir()
    warmup, steps, rounds = bench.pick((1, 1, 1), (1, 4, 1), (1, 4, 2))
    sides, weights = side_by_side(
        own,
        workload,
        [(_ALL, kubealign(workload)), (name, kubealign(workload, change=change))],
        warmup,
        steps,
        rounds,
    )
    # The mean of a reward model with random weights is close to 0, and two jobs of the same document draw
    # other tokens after a few steps: reference and reward score samples in the order in which they arrive.
    apart = check_same_work(*sides, compared=(GRADIENT_NORM,))
    return sides, detail(sides, workload, weights) | {"apart": apart}


def _pool(bench: Bench, workload: Workload) -> tuple[dict[str, float], dict[str, Any]]:
    """Measure the generation of a step by two workers that pull prompts from the bus, and by two that have a
    fixed half of the prompts each. Decoding is a timed wait, as long as our engine took for each sample with
    all of the step running, so the workers need no core.

    Return the figures and the detail.
    """
    folder = bench.folder / "pool"
    capacity = workload.sequences // (_WORKERS * _LOADS)
    steps = bench.pick(2, 4, 8)
    # The pool makes two steps more than it measures.
    count = steps + 2
    workload.write(folder, count)
    bench.say("a trace of our engine")
    lines, _ = peer("our_generation", [], "kubealign")(folder, count, bench.folder / "trace")
    # Samples come sorted by their seconds, which the static split would divide evenly.
    draw = random.Random(workload.seed)
    finished = [sample for line in lines for sample in draw.sample(line["finished"], workload.sequences)]
    results: dict[bool, dict[str, Any]] = {}
    for static in (False, True):
        name = "static" if static else "pulled"
        trace = {
            "capacity": capacity,
            "finished": finished,
            "samples": 1,
            "staleness": 0,
            "prompts": workload.sequences,
            "by_prompt": True,
            "static": static,
        }
        file, result = bench.folder / f"{name}-trace.json", bench.folder / f"{name}.json"
        file.write_text(json.dumps(trace))
        command = [sys.executable, "-m", "tests.bench.peers.replayed_rollout"]
        command += [str(file), str(_WORKERS), str(steps), str(result)]
        run(command, bench.folder / f"{name}.txt", environment(threads=1), _TIMEOUT_SECONDS, "workers")
        results[static] = json.loads(result.read_text())
        bench.say(f"{name}: {statistics.mean(results[static]['step_seconds']):.2f} s of generation")
    pulled, fixed = (statistics.mean(results[static]["step_seconds"]) for static in (False, True))
    figures = {"pool": pulled, "static_pool": fixed, "times_static_pool": fixed / pulled}
    return figures, {
        "workers": _WORKERS,
        "capacity": capacity,
        "pulled": results[False],
        "static": results[True],
    }


LINES = (
    Line(
        "ablation",
        "PPO step, long-tailed answers, with one part turned off",
        "the same step with everything on",
        (
            Aim("times_without_overlap", "times, each model after another", 1.0),
            Aim("times_without_shared_memory", "times, weights by stream", 1.0),
            Aim("times_static_pool", "times the generation alone, prompts divided between two workers", 1.0),
        ),
        _run,
    ),
)
