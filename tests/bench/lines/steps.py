"""Runs the steps of kubealign and of its peers on the same workload; shared by the lines that compare
steps."""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bench import jobs, kubealign_side
from tests.bench.line import Bench
from tests.bench.machine import environment
from tests.bench.process import run
from tests.bench.side import Side
from tests.bench.turns import Turns
from tests.bench.watch import Usage
from tests.bench.workload import Workload

_TIMEOUT_SECONDS = 3600.0
#: Tolerances of reward and gradient for the median step and for every step; beyond them the two sides did not
#: do the same work. They are not zero: a request that arrives a moment later is computed in another batch,
#: and a difference in the last bit can draw another token, and with it another response.
_MOSTLY, _ABOUT = 0.02, 0.25
GRADIENT_NORM = "trainer/gradient_norm"
#: Runs steps: (workload folder, number of steps, own folder) -> lines of metrics, and resource usage.
Peer = Callable[[Path, int, Path], tuple[list[dict[str, Any]], Usage]]


def peer(module: str, way: Sequence[str], name: str, python: str = sys.executable) -> Peer:
    """Return a peer that runs `python -m tests.bench.peers.MODULE WAY... FOLDER STEPS RESULT`. It raises
    RuntimeError when the process fails or takes too long."""

    def steps(folder: Path, count: int, own: Path) -> tuple[list[dict[str, Any]], Usage]:
        own.mkdir()
        result = own / "steps.jsonl"
        command = [python, "-m", f"tests.bench.peers.{module}", *way, str(folder), str(count), str(result)]
        usage = run(command, own / "output.txt", environment(), _TIMEOUT_SECONDS, name)
        return [json.loads(line) for line in result.read_text().splitlines()], usage

    return steps


def kubealign(
    workload: Workload,
    name: str = "kubealign",
    around_run: Callable[[Path], Any] | None = None,
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Peer:
    """Return a peer that runs the workload's job with `kubealign run`. It raises RuntimeError if the batches
    differ from those of the workload. change: changes the spec of the job in place."""

    def steps(folder: Path, count: int, own: Path) -> tuple[list[dict[str, Any]], Usage]:
        job = jobs.online(workload, folder, kubealign_side.NAME, count)
        if change is not None:
            change(job["spec"])
        lines, usage = kubealign_side.measure(job, own, _TIMEOUT_SECONDS, around_run)
        for line in lines:
            tokens, longest = line["batch/tokens"], line["response/length_max"]
            if (tokens, longest) != (workload.tokens, workload.most_tokens):
                raise RuntimeError(
                    f"step {line['step']} has {tokens} tokens and a response of {longest}; the workload says "
                    f"{workload.tokens} and {workload.most_tokens}"
                )
        return lines, usage

    return steps


def in_turn(
    bench: Bench, workload: Workload, peers: Sequence[tuple[str, Peer, int, int]], rounds: int = 1
) -> tuple[list[Side], int]:
    """Run each peer `rounds` times in turn. Return the sides and the model's number of weights.

    peers: (name, peer, warm-up steps, measured steps)."""
    sides = [Side(name) for name, *_ in peers]
    folder = bench.folder / "workload"
    weights = workload.write(folder, max(warmup + measured for _, _, warmup, measured in peers))
    for turn in range(rounds):
        for side, (name, steps, warmup, measured) in zip(sides, peers, strict=True):
            bench.say(f"{name}: {warmup + measured} steps, round {turn + 1} of {rounds}")
            own = bench.folder / f"{name.replace(' ', '-')}-{turn}"
            side.add(*steps(folder, warmup + measured, own), warmup)
            bench.say(f"{name}: {side.step_seconds:.2f} s a step")
    return sides, weights


def side_by_side(
    bench: Bench,
    workload: Workload,
    peers: Sequence[tuple[str, Peer]],
    warmup: int,
    measured: int,
    rounds: int,
) -> tuple[list[Side], int]:
    """Run all peers concurrently, each with the machine by turns (`Turns`). Return the sides and the model's
    number of weights. A step's seconds count only while the side has the machine; phases have no seconds."""
    sides = [Side(name) for name, _ in peers]
    folder = bench.folder / "workload"
    weights = workload.write(folder, warmup + measured)
    for turn in range(rounds):
        bench.say(f"{warmup + measured} steps each, by turns, round {turn + 1} of {rounds}")
        with Turns() as turns, ThreadPoolExecutor(len(peers)) as pool:
            running = []
            for name, steps in peers:
                own = bench.folder / f"{name.replace(' ', '-')}-{turn}"
                running.append(pool.submit(steps, folder, warmup + measured, own))
                try:
                    turns.wait_for_sides(len(running))
                except TimeoutError:
                    # A side whose program could not be started is the cause.
                    for each in running:
                        if each.done():
                            each.result()
                    raise
            outcomes = [each.result() for each in running]
        for number, (side, (lines, usage)) in enumerate(zip(sides, outcomes, strict=True)):
            took = [turns.seconds(number, *span) for span in pairwise(line["time"] for line in lines)]
            side.add([lines[0], *map(_took, lines[1:], took)], usage, warmup)
            bench.say(f"{side.name}: {side.step_seconds:.2f} s a step")
    return sides, weights


def check_same_work(
    ours: Side, other: Side, compared: Sequence[str] = ("reward/mean", GRADIENT_NORM)
) -> dict[str, list[float]]:
    """Return by how much metrics of two sides differ in each step. Raises RuntimeError if the sides did not
    do the same work. compared: metrics that are not close to 0."""
    apart = {name: _apart(ours.steps, other.steps, name) for name in compared}
    for name, each in apart.items():
        if statistics.median(each) > _MOSTLY or max(each) > _ABOUT:
            raise RuntimeError(
                f"{name} of {ours.name} and of {other.name} are {each} apart: not the same work"
            )
    return apart


def _apart(ours: list[dict[str, float]], others: list[dict[str, float]], name: str) -> list[float]:
    """Return the difference of a metric in each step, relative to the larger value."""
    pairs = [(mine[name], other[name]) for mine, other in zip(ours, others, strict=True)]
    return [abs(mine - other) / max(abs(mine), abs(other), 1e-9) for mine, other in pairs]


def _took(line: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Return the line with these seconds for its step, and none for its phases."""
    plain = {name: value for name, value in line.items() if not name.startswith("seconds/")}
    return plain | {"seconds/step": seconds}


def detail(sides: Sequence[Side], workload: Workload, weights: int) -> dict[str, Any]:
    """Return the detail of a line's outcome."""
    return {
        "weights": weights,
        "workload": vars(workload),
        "sides": [side.as_json() for side in sides],
    }
