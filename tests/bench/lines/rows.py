"""Training throughput on rows of ragged lengths, in tokens per second, against TRL."""

from pathlib import Path
from typing import Any

from tests.bench import jobs, kubealign_side, rows
from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.lines.steps import Peer, detail, in_turn, peer
from tests.bench.watch import Usage
from tests.bench.workload import Workload

_TIMEOUT_SECONDS = 3600.0


def _line(method: str, ways: tuple[str, ...], best: str, rounds: int) -> Line:
    """Return the line of a method. rounds: in the full form; several if the sides are close."""

    def run(bench: Bench) -> Outcome:
        workload = bench.tailed.doing(method=method)
        rows_per_step = workload.sequences if method == "sft" else workload.sequences // 2
        warmup, steps = bench.pick((1, 1), (2, 6), (1, 6))
        ours = ("kubealign", _kubealign(workload, rows_per_step), warmup, steps)
        theirs = [(f"TRL {way}", _trl(way, workload, rows_per_step), 1, bench.pick(1, 6, 6)) for way in ways]
        sides, weights = in_turn(bench, workload, [ours, *theirs], rounds=bench.pick(1, 1, rounds))
        ours_side, *others = sides
        pace = {side.name: side.tokens_per_second() for side in others}
        figures = {
            "kubealign": ours_side.tokens_per_second(),
            "trl": max(pace.values()),
            "times": ours_side.tokens_per_second() / max(pace.values()),
        }
        fastest = max(pace, key=pace.__getitem__)
        return Outcome(figures, detail(sides, workload, weights), [f"the fastest of TRL's ways: {fastest}"])

    return Line(
        method,
        f"{method.upper()}, tokens per second, ragged lengths",
        f"TRL, {best}",
        (Aim("times", "times TRL with its best setting", 1.1),),
        run,
    )


def _kubealign(workload: Workload, rows_per_step: int) -> Peer:
    def steps(folder: Path, count: int, own: Path) -> tuple[list[dict[str, Any]], Usage]:
        if not (folder / rows.ROWS).is_file():
            rows.write(workload, folder, count, rows_per_step)
        job = jobs.offline(workload, folder, kubealign_side.NAME, count, folder / rows.ROWS, rows_per_step)
        return kubealign_side.measure(job, own, _TIMEOUT_SECONDS)

    return steps


def _trl(way: str, workload: Workload, rows_per_step: int) -> Peer:
    run = peer("trl_rows", [way, str(rows_per_step)], "TRL")

    def steps(folder: Path, count: int, own: Path) -> tuple[list[dict[str, Any]], Usage]:
        if not (folder / rows.ROWS).is_file():
            rows.write(workload, folder, count, rows_per_step)
        return run(folder, count, own)

    return steps


LINES = (
    _line("sft", ("packed", "padded"), "packed, or padded in small batches of like lengths", rounds=2),
    _line(
        "dpo", ("padded", "whole"), "padded in small micro-batches, or in one (it has no packing)", rounds=1
    ),
)
