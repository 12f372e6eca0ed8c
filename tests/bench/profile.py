"""Profiles a training step: `python -m tests.bench.profile [--full] [--fixed]`.

Prints the phases of a step, then the shares of the engine's and the trainer's operations from torch's
profiler. The step runs in one process, which does the work of a job (see `peers/one_process.py`). Operations
count with their self time, without the operations that they call.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.bench.line import Bench, Form
from tests.bench.machine import environment
from tests.bench.peers.one_process import OneProcess
from tests.bench.peers.our_generation import generate, requests
from tests.bench.workload import MODEL, Workload
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedTokenizerFast

from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.weights import read_folder_weights

#: Part -> substrings of its operations' names. The first match counts.
PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("attention", "flash", "bmm", "softmax")),
    ("linear", ("addmm", "mm", "linear", "mkldnn", "matmul")),
    (
        "sampling and losses",
        ("log_softmax", "logsumexp", "gather", "sort", "topk", "cumsum", "argmax", "exp"),
    ),
    ("norm", ("rms_norm", "rsqrt", "norm", "pow", "mean")),
    ("optimiser", ("adam", "lerp", "addcmul", "addcdiv", "foreach")),
    ("copies and indices", ("copy", "cat", "index", "embedding", "slice", "select", "stack", "fill", "zero")),
)


def part_of(operation: str) -> str:
    """Return the part that an operation of torch belongs to."""
    name = operation.lower()
    return next(
        (part for part, words in PARTS if any(word in name for word in words)), "elementwise and rest"
    )


def by_part(operations: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the seconds by part, the largest first. operations: (name, self time in seconds)."""
    totals: dict[str, float] = {}
    for name, seconds in operations:
        totals[part_of(name)] = totals.get(part_of(name), 0.0) + seconds
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def measured(action: Callable[[], Any]) -> tuple[float, dict[str, float]]:
    """Return the seconds of the action, and its seconds by part; time outside of operations counts as
    Python."""
    begun = time.perf_counter()
    action()
    plain = time.perf_counter() - begun
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        begun = time.perf_counter()
        action()
        watching = time.perf_counter() - begun
    parts = by_part((event.key, event.self_cpu_time_total / 1e6) for event in watched.key_averages())
    parts["Python, and kernels that are not torch's"] = max(0.0, watching - sum(parts.values()))
    return plain, parts


def _shown(title: str, seconds: float, parts: dict[str, float]) -> Table:
    shown = Table("part", "share", title=f"{title}: {seconds:.2f} s; shares while it was profiled")
    total = sum(parts.values())
    for name, spent in parts.items():
        shown.add_row(name, f"{spent / total:.0%}")
    return shown


def _generation(workload: Workload, folder: Path) -> tuple[float, dict[str, float]]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / MODEL)
    engine = TorchRolloutEngine.create(folder / MODEL, EngineSpec(max_sequences=workload.sequences))
    engine.refit(read_folder_weights(folder / MODEL), 0)
    asked = iter([requests(workload, tokenizer, step) for step in range(3)])
    generate(engine, next(asked))
    return measured(lambda: generate(engine, next(asked)))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile", description=__doc__)
    parser.add_argument("--full", action="store_true", help="25 million weights in place of 6")
    parser.add_argument("--tiny", action="store_true", help="check that the profile itself works")
    parser.add_argument("--fixed", action="store_true", help="all answers of the same length")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    form = Form.FULL if options.full else Form.TINY if options.tiny else Form.QUICK
    with tempfile.TemporaryDirectory(prefix="kubealign-bench-profile-") as name:
        bench = Bench(form, Path(name), console.print)
        workload = bench.workload if options.fixed else bench.tailed
        folder = Path(name) / "workload"
        workload.write(folder, 5)
        step = OneProcess(workload, folder, 5)
        step.step()
        figures = step.step()
        phases = Table("phase", "seconds", title="A step in one process")
        for phase in ("refit", "generate", "train", "step"):
            phases.add_row(phase, f"{figures[f'seconds/{phase}']:.2f}")
        console.print(phases)
        console.print(_shown("Generation", *_generation(workload, folder)))
        console.print(_shown("Training", *measured(step.train_again)))


if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:
        # Spinning threads would be counted as work.
        os.execve(sys.executable, [sys.executable, "-m", "tests.bench.profile", *sys.argv[1:]], environment())
    main(sys.argv[1:])
