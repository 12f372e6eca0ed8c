"""Overhead of a step through services, bus and RPC against the same step in one process."""

import statistics

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import detail, kubealign, peer, side_by_side

#: Tolerances of reward and gradient for the median step and for every step; beyond them the two sides did not
#: do the same work. They are not zero: a request that arrives a moment later is computed in another batch,
#: and a difference in the last bit can draw another token, and with it another response.
_MOSTLY, _ABOUT = 0.02, 0.25
_COMPARED = ("reward/mean", "trainer/gradient_norm")


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
    apart = {name: _apart(ours.steps, alone.steps, name) for name in _COMPARED}
    for name, each in apart.items():
        if statistics.median(each) > _MOSTLY or max(each) > _ABOUT:
            raise RuntimeError(f"{name} of services and of one process are {each} apart: not the same work")
    figures = {
        "services": ours.step_seconds,
        "one_process": alone.step_seconds,
        "ratio": ours.step_seconds / alone.step_seconds,
    }
    cpu = [sum(side.cpu_seconds_by_group().values()) for side in sides]
    if cpu[1]:
        figures["cpu_ratio"] = cpu[0] / cpu[1]
    return Outcome(figures, detail(sides, workload, weights) | {"apart": apart})


def _apart(ours: list[dict[str, float]], others: list[dict[str, float]], name: str) -> list[float]:
    """Return the difference of a metric in each step, relative to the larger value."""
    pairs = [(mine[name], other[name]) for mine, other in zip(ours, others, strict=True)]
    return [abs(mine - other) / max(abs(mine), abs(other), 1e-9) for mine, other in pairs]


LINES = (
    Line(
        "services",
        "one step through services, bus and wire",
        "the same step in one process",
        (Aim("ratio", "of the step in one process", 1.05, at_least=False),),
        _run,
    ),
)
