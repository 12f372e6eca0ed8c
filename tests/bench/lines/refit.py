"""Refit over shared memory and as a delta, and the sender's cost of additional receivers."""

import json
import sys
from typing import Any

from tests.bench.line import Aim, Bench, Line, Outcome
from tests.bench.machine import environment
from tests.bench.process import ROOT, run

_TIMEOUT_SECONDS = 1200.0
_MIB = 1 << 20


def _figures(bench: Bench, what: str, size: int, threads: int | None = None) -> dict[str, Any]:
    result = bench.folder / f"{what}.json"
    command = [sys.executable, "-m", "tests.bench.peers.refit_figures", what, str(size), str(result)]
    # The package `support` is in this folder.
    env = environment(threads) | {"PYTHONPATH": str(ROOT / "tests")}
    run(command, bench.folder / f"{what}.txt", env, _TIMEOUT_SECONDS, what)
    figures: dict[str, Any] = json.loads(result.read_text())
    return figures


def _shared(bench: Bench) -> Outcome:
    results = _figures(bench, "shared", bench.pick(16, 1024, 1024) * _MIB)
    notes = [
        "the engine computes with what is mapped while its checksums are computed, and hands nothing out "
        f"before: {results['proven']:.2f} memcpys. One that has to copy needs {results['copying']:.2f}"
    ]
    return Outcome(results, notes=notes)


def _delta(bench: Bench) -> Outcome:
    """Report the worse of random gradients and of a real model's gradients."""
    results = _figures(bench, "delta", bench.pick(200_000, 16_000_000, 32_000_000), threads=1)
    figures = {name: max(each[name] for each in results.values()) for name in ("changed", "size")}
    figures |= {name: min(each[name] for each in results.values()) for name in ("encode_gib", "apply_gib")}
    return Outcome(figures, results)


def _senders(bench: Bench) -> Outcome:
    results = _figures(bench, "senders", bench.pick(16, 256, 256) * _MIB)
    alone, many = (results[count] for count in sorted(results, key=int))
    return Outcome({"ratio": many / alone}, results)


def _streams(bench: Bench) -> Outcome:
    results = _figures(bench, "streams", bench.pick(16, 256, 256) * _MIB)
    return Outcome({f"fan_out_{most}": each["ratio"] for most, each in results.items()}, results)


def _checksum(bench: Bench) -> Outcome:
    """Report the worse of one and two threads, by tensor size."""
    results = _figures(bench, "checksum", bench.pick(4, 256, 256) * _MIB, threads=1)
    least: dict[str, float] = {}
    for case, each in results.items():
        size = case.split(",")[0]
        least[size] = min(least.get(size, float("inf")), each["cpu_ratio"])
    small, *large = least.values()
    notes = [f"{', '.join(f'{size}: {ratio:.2f}' for size, ratio in least.items())}"]
    return Outcome({"large": min(large), "small": small}, results, notes)


LINES = (
    Line(
        "refit-shared",
        "refit of 1 GiB over shared memory, ready to use",
        "one memcpy of the same bytes in the same run",
        (Aim("adopting", "memcpys", 1.5, at_least=False),),
        _shared,
    ),
    Line(
        "refit-checksum",
        "copy into a snapshot with its checksum, one and two threads",
        "the xxhash library after the copy, in chunks or all at once",
        (Aim("large", "times the library in processor time, tensors of 16 and 256 MiB", 1.3),),
        _checksum,
    ),
    Line(
        "refit-delta",
        "refit as a delta after a step at 1e-6, one thread",
        "dense bytes",
        (
            Aim("size", "of the dense bytes", 0.04, at_least=False, percent=True),
            Aim("encode_gib", "GiB of dense weights a second, encode", 2.0),
            Aim("apply_gib", "GiB of dense weights a second, apply", 2.0),
        ),
        _delta,
    ),
    Line(
        "refit-senders",
        "the sender's processor time with eight receivers, shared memory",
        "with one",
        (Aim("ratio", "times that with one", 1.3, at_least=False),),
        _senders,
    ),
    Line(
        "refit-streams",
        "the sender's processor time with eight receivers, streams",
        "with one",
        (Aim("fan_out_1", "times that with one, handed on one to one (fanOut 1)", 1.3, at_least=False),),
        _streams,
    ),
)
