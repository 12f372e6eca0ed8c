"""Generation alone: our engine against transformers."""

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import detail, in_turn, peer


def _run(bench: Bench) -> Outcome:
    workload = bench.tailed
    steps = bench.pick(1, 2, 3)
    sides, weights = in_turn(
        bench,
        workload,
        [
            ("kubealign", peer("our_generation", [], "kubealign"), 1, steps + 1),
            ("continuous batching", peer("generation", ["continuous"], "transformers"), 1, steps),
            ("generate", peer("generation", ["generate"], "transformers"), 0, bench.pick(1, 1, 2)),
        ],
    )
    ours, continuous, padded = sides
    figures = {
        "kubealign": ours.tokens_per_second(),
        "continuous": continuous.tokens_per_second(),
        "generate": padded.tokens_per_second(),
    }
    figures |= {f"times_{name}": figures["kubealign"] / figures[name] for name in ("continuous", "generate")}
    return Outcome(figures, detail(sides, workload, weights))


LINES = (
    Line(
        "generation",
        "generation alone, long-tailed answers, tokens per second",
        "transformers' generate; its continuous batching",
        (
            Aim("times_generate", "times transformers' generate", 4.0),
            Aim("times_continuous", "times its continuous batching", 1.3),
        ),
        _run,
    ),
)
