"""What it costs that a step goes through services, bus and wire."""

import math

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import detail, in_turn, kubealign, peer

#: Reward and gradient of the two must agree this well; else they did not do the same work. Not exactly: a
#: request that comes a moment later is computed in another batch, and a last bit can make another token the
#: one that is drawn.
_SAME = 0.02


def _run(bench: Bench) -> Outcome:
    workload = bench.workload
    warmup, steps = bench.pick((1, 1), (2, 6), (1, 6))
    sides, weights = in_turn(
        bench,
        workload,
        [
            ("kubealign", kubealign(workload), warmup, steps),
            ("one process", peer("one_process", [], "one process"), warmup, steps),
        ],
        rounds=bench.pick(1, 2, 2),
    )
    ours, alone = sides
    for mine, other in zip(ours.steps, alone.steps, strict=True):
        for figure in ("reward/mean", "trainer/gradient_norm"):
            if not math.isclose(mine[figure], other[figure], rel_tol=_SAME, abs_tol=_SAME):
                raise RuntimeError(
                    f"step {mine['step']}: {figure} is {mine[figure]} in services and {other[figure]} in one "
                    "process"
                )
    figures = {
        "services": ours.fastest_step_seconds,
        "one_process": alone.fastest_step_seconds,
        "ratio": ours.fastest_step_seconds / alone.fastest_step_seconds,
    }
    cpu = [sum(side.cpu_seconds_by_group().values()) for side in sides]
    if cpu[1]:
        figures["cpu_ratio"] = cpu[0] / cpu[1]
    return Outcome(figures, detail(sides, workload, weights), ["both made the same rewards and gradients"])


LINES = (
    Line(
        "services",
        "one step through services, bus and wire",
        "the same step in one process",
        (Aim("ratio", "of the step in one process", 1.05, at_least=False),),
        _run,
    ),
)
