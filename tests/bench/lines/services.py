"""Overhead of a step through services, bus and RPC against the same step in one process."""

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import check_same_work, detail, kubealign, peer, side_by_side


def _run(bench: Bench) -> Outcome:
    workload = bench.workload
    warmup, steps, rounds = bench.pick((1, 1, 1), (2, 6, 1), (2, 6, 3))
    sides, weights = side_by_side(
        bench,
        workload,
        [("kubealign", kubealign(workload)), ("one process", peer("one_process", [], "one process"))],
        warmup,
        steps,
        rounds,
    )
    ours, alone = sides
    apart = check_same_work(ours, alone)
    figures = {
        "services": ours.step_seconds,
        "one_process": alone.step_seconds,
        "ratio": ours.step_seconds / alone.step_seconds,
    }
    cpu = [sum(side.cpu_seconds_by_group().values()) for side in sides]
    if cpu[1]:
        figures["cpu_ratio"] = cpu[0] / cpu[1]
    return Outcome(figures, detail(sides, workload, weights) | {"apart": apart})


LINES = (
    Line(
        "services",
        "one step through services, bus and wire",
        "the same step in one process",
        (Aim("ratio", "of the step in one process", 1.05, at_least=False),),
        _run,
    ),
)
