"""An RLOO step by kubealign's services and by TRL's trainer: `python -m tests.bench.rloo_step`."""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.bench import kubealign_side
from tests.bench.watch import Usage, Watch
from tests.bench.workload import FULL, QUICK, Workload

from kubealign.local.threads import available_cores

#: In the order of a step. The refit is not one of them: it passes while kubealign's generate waits for it.
PHASES = ("generate", "score", "logprobs", "train")
#: Threads that wait for others do so asleep, on both sides: kubealign's processes are started like this.
#: TRL is told to use every core, as kubealign's trainer is.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": str(available_cores()),
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_TIMEOUT_SECONDS = 1800.0
# What else may use meanwhile without a word about it.
_QUIET_CORES = 0.1
_GIB = 1 << 30


@dataclass
class Side:
    """What one of the two did, over all rounds, warm-up steps left out."""

    name: str
    #: Lines of metrics, one a step.
    steps: list[dict[str, Any]] = field(default_factory=list)
    #: Processor seconds of a step, by group, one entry a round.
    cpu_seconds: list[dict[str, float]] = field(default_factory=list)
    #: Cores that the rest of the machine used meanwhile, one entry a round.
    others_cores: list[float] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    peak_bytes_of_all: int = 0

    def add(self, lines: Sequence[dict[str, Any]], usage: Usage, warmup: int) -> None:
        measured = list(lines[warmup:])
        begin, end = lines[warmup - 1]["time"], measured[-1]["time"]
        self.steps += measured
        self.cpu_seconds.append(
            {group: seconds / len(measured) for group, seconds in usage.cpu_seconds(begin, end).items()}
        )
        self.others_cores.append(usage.others_cores(begin, end))
        peaks, of_all = usage.peak_bytes(begin, end)
        for group, size in peaks.items():
            self.peak_bytes[group] = max(self.peak_bytes.get(group, 0), size)
        self.peak_bytes_of_all = max(self.peak_bytes_of_all, of_all)

    def seconds(self, phase: str) -> float | None:
        """Median; None: this side has no such phase."""
        found = [line[f"seconds/{phase}"] for line in self.steps if f"seconds/{phase}" in line]
        return _median(found) if found else None

    def rest(self) -> float:
        """Median of what no phase accounts for."""
        return _median(
            line["seconds/step"] - sum(line.get(f"seconds/{phase}", 0.0) for phase in PHASES)
            for line in self.steps
        )

    def tokens_per_second(self) -> float:
        return _median(line["batch/tokens"] / line["seconds/step"] for line in self.steps)

    def cpu_seconds_by_group(self) -> dict[str, float]:
        """Median over the rounds, of those that used any."""
        groups = dict.fromkeys(group for entry in self.cpu_seconds for group in entry)
        return {
            group: median
            for group in groups
            if (median := statistics.median(entry.get(group, 0.0) for entry in self.cpu_seconds)) >= 0.005
        }


def measure_trl(folder: Path, steps: int, run_folder: Path) -> tuple[list[dict[str, Any]], Usage]:
    """The same for TRL. Raises RuntimeError when it fails or takes too long."""
    run_folder.mkdir()
    result, output = run_folder / "steps.jsonl", run_folder / "output.txt"
    command = [sys.executable, "-m", "tests.bench.trl_side", str(folder), str(steps), str(result)]
    with (
        output.open("w") as file,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=os.environ | _ENVIRONMENT
        ) as process,
    ):
        try:
            with Watch(process.pid, lambda parents: dict.fromkeys(parents, "TRL")) as usage:
                code = process.wait(_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"TRL had not ended after {_TIMEOUT_SECONDS:g} s:\n{_end(output)}") from None
        finally:
            process.kill()
    if code != 0:
        raise RuntimeError(f"TRL ended with code {code}:\n{_end(output)}")
    return [json.loads(line) for line in result.read_text().splitlines()], usage


def compare(
    workload: Workload, steps: int, warmup: int, rounds: int, console: Console
) -> tuple[Side, Side, int]:
    """kubealign and TRL in turn, `rounds` times each; and how many weights the model has."""
    ours, theirs = Side("kubealign"), Side("TRL")
    with tempfile.TemporaryDirectory(prefix="kubealign-bench-") as name:
        work = Path(name) / "workload"
        total = warmup + steps
        weights = workload.write(work, total)
        for turn in range(rounds):
            console.print(f"round {turn + 1} of {rounds}: kubealign, {total} steps")
            ours.add(
                *kubealign_side.measure(
                    workload, work, total, Path(name) / f"kubealign-{turn}", _TIMEOUT_SECONDS
                ),
                warmup,
            )
            console.print(f"round {turn + 1} of {rounds}: TRL, {total} steps")
            theirs.add(*measure_trl(work, total, Path(name) / f"trl-{turn}"), warmup)
    return ours, theirs, weights


def show(ours: Side, theirs: Side, console: Console) -> None:
    """The tables."""
    times = Table("", "kubealign", "TRL", "kubealign / TRL", title="Seconds of a step, medians")
    rows: list[tuple[str, float | None, float | None]] = [
        (phase, ours.seconds(phase), theirs.seconds(phase)) for phase in PHASES
    ]
    rows.append(("the rest", ours.rest(), theirs.rest()))
    rows.append(("step", ours.seconds("step"), theirs.seconds("step")))
    for name, mine, other in rows:
        if mine is not None or other is not None:
            times.add_row(name, _number(mine), _number(other), _ratio(mine, other))
        if name == "generate":
            times.add_row("  of it refit", _number(ours.seconds("refit")), "-", "")
    mine, other = ours.tokens_per_second(), theirs.tokens_per_second()
    times.add_row("tokens per second", f"{mine:.0f}", f"{other:.0f}", _ratio(mine, other))
    console.print(times)

    use = Table("", "processor seconds a step", "peak memory, GiB", title="What the processes used")
    for side in (ours, theirs):
        cpu = side.cpu_seconds_by_group()
        if len(side.peak_bytes) > 1:
            for group, size in sorted(side.peak_bytes.items(), key=lambda item: -item[1]):
                use.add_row(group, _number(cpu.get(group)), f"{size / _GIB:.2f}")
        total = f"{side.name}, all" if len(side.peak_bytes) > 1 else side.name
        use.add_row(
            total, _number(sum(cpu.values())), f"{side.peak_bytes_of_all / _GIB:.2f}", end_section=True
        )
    console.print(use)
    for side in (ours, theirs):
        shares = ", ".join(f"{cores:.2f}" for cores in side.others_cores)
        console.print(f"while {side.name} was measured, everything else used {shares} cores, by round")
    if max(ours.others_cores + theirs.others_cores) > _QUIET_CORES:
        console.print("the machine was not quiet: these seconds are too long, and the ratios rough")


def as_json(
    workload: Workload, ours: Side, theirs: Side, weights: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """All figures, each step's among them."""
    machine = {"cores": available_cores(), "processor": platform.machine()}
    return {
        "workload": asdict(workload) | {"weights": weights},
        "options": dict(options),
        "machine": machine,
        "sides": [asdict(ours), asdict(theirs)],
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rloo_step", description=__doc__)
    parser.add_argument("--steps", type=int, default=6, help="steps measured in each round")
    parser.add_argument("--warmup", type=int, default=2, help="steps before, not measured")
    parser.add_argument("--rounds", type=int, default=1, help="rounds; in each, both take their turn")
    parser.add_argument("--full", action="store_true", help="25 million weights in place of 6")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    options = parser.parse_args(arguments)
    if min(options.steps, options.warmup, options.rounds) < 1:
        parser.error("--steps, --warmup and --rounds must be at least 1")
    console = Console(width=None if sys.stdout.isatty() else 100)
    workload = FULL if options.full else QUICK
    ours, theirs, weights = compare(workload, options.steps, options.warmup, options.rounds, console)
    console.print(
        f"{weights / 1e6:.1f} million weights; {workload.prompts_per_step} prompts of "
        f"{workload.prompt_tokens} tokens, {workload.samples_per_prompt} samples of "
        f"{workload.response_tokens} to each; medians over {len(ours.steps)} steps, after {options.warmup} "
        f"of warm-up in each of {options.rounds} rounds"
    )
    show(ours, theirs, console)
    if options.json is not None:
        chosen = {name: value for name, value in vars(options).items() if name != "json"}
        options.json.write_text(json.dumps(as_json(workload, ours, theirs, weights, chosen), indent=1))


def _median(numbers: Iterable[float]) -> float:
    return float(statistics.median(numbers))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(mine: float | None, other: float | None) -> str:
    return f"{mine / other:.2f}" if mine is not None and other is not None and other >= 0.005 else ""


def _end(output: Path) -> str:
    return output.read_text()[-4000:]


if __name__ == "__main__":
    main(sys.argv[1:])
