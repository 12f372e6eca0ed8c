"""A rollout worker that joins while a step runs."""

import asyncio
import bisect
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench import jobs, kubealign_side
from tests.bench.bystander import Served, rollouts
from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.watch import Usage
from tests.bench.workload import Workload

from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.control_socket import scale

_TIMEOUT_SECONDS = 3600.0
_SECONDS_BETWEEN = 0.05


class _Joining:
    """Scales to a second worker in the middle of a step, when a third of the step's samples have arrived."""

    def __init__(self, workload: Workload, after_steps: int) -> None:
        self.asked_at = 0.0
        self.seen: list[Served] = []
        self.refused = ""
        self._samples_before_asking = workload.sequences * after_steps + workload.sequences // 3

    @contextmanager
    def __call__(self, run_dir: Path) -> Iterator[None]:
        done = threading.Event()

        def ask() -> None:
            while len(self.seen) < self._samples_before_asking:
                if done.wait(_SECONDS_BETWEEN):
                    return
            self.asked_at = time.time()
            try:
                asyncio.run(scale(run_dir, 2))
            except RunRefused as error:
                self.refused = str(error)

        with rollouts(run_dir) as self.seen:
            thread = threading.Thread(target=ask, name="joining", daemon=True)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join(30)


def joined(
    ends: Sequence[float],
    seconds: Sequence[float],
    waits: Sequence[float],
    asked_at: float,
    seen: Sequence[Served],
) -> dict[str, float]:
    """Compute the figures of a worker that joins during a run; the new worker is rollout-1.

    Args:
        ends: End of each step, in seconds since the epoch.
        seconds: Duration of each step.
        waits: Seconds of each step spent waiting for the refit.
        asked_at: Time of the request for the second worker.
        seen: Samples of all workers.

    Returns:
        ready_seconds, from the request until the first sample of the new worker; steps_until, the number of
        steps that ended in between; waited_seconds, by how much the refit wait of the steps in between
        exceeds the median wait before; step_ratio, their longest duration relative to the median before;
        step_before, that median.

    Raises RuntimeError if the new worker served nothing, or was requested in the first step.
    """
    first = min((served.time for served in seen if served.worker == "rollout-1"), default=None)
    if first is None or not asked_at:
        raise RuntimeError("the worker that joined served nothing")
    asked_in, served_in = bisect.bisect_left(ends, asked_at), bisect.bisect_left(ends, first)
    if asked_in == 0:
        raise RuntimeError("the worker was asked for in the first step, with which nothing can be compared")
    before = statistics.median(seconds[:asked_in])
    saw = slice(asked_in, min(served_in, len(ends) - 1) + 1)
    return {
        "ready_seconds": first - asked_at,
        "steps_until": float(served_in - asked_in),
        "waited_seconds": max(waits[saw]) - statistics.median(waits[:asked_in]),
        "step_ratio": max(seconds[saw]) / before,
        "step_before": before,
    }


def _run(bench: Bench) -> Outcome:
    workload = bench.tailed
    before, after = bench.pick((2, 6), (2, 3), (2, 3))
    folder = bench.folder / "workload"
    weights = workload.write(folder, before + after + 1)
    joining = _Joining(workload, before)
    lines, _ = _steps(workload, folder, before + after + 1, bench.folder / "kubealign", joining)
    if joining.refused:
        raise RuntimeError(f"the second worker was refused: {joining.refused}")
    # The first step is warm-up.
    measured = lines[1:]
    figures = joined(
        [line["time"] for line in measured],
        [line["seconds/step"] for line in measured],
        [line.get("seconds/refit", 0.0) for line in measured],
        joining.asked_at,
        joining.seen,
    )
    shares = [served for served in joining.seen if served.worker == "rollout-1"]
    detail: dict[str, Any] = {
        "weights": weights,
        "workload": vars(workload),
        "steps": lines,
        "samples_of_the_newcomer": len(shares),
    }
    return Outcome(figures, detail)


def _steps(
    workload: Workload, folder: Path, count: int, own: Path, joining: _Joining
) -> tuple[list[dict[str, Any]], Usage]:
    job = jobs.online(workload, folder, kubealign_side.NAME, count)
    # A quarter at a time, so that work is left for a worker that joins in the middle of a step.
    job["spec"]["rollout"]["engine"]["torch"]["maxSequences"] = max(1, workload.sequences // 4)
    return kubealign_side.measure(job, own, _TIMEOUT_SECONDS, joining)


LINES = (
    Line(
        "joining",
        "a worker joins while a step runs",
        "the steps before",
        (
            Aim("steps_until", "steps until it serves", 1.0, at_least=False),
            Aim("waited_seconds", "seconds more that the steps waited for weights", 0.1, at_least=False),
        ),
        _run,
    ),
)
