"""One side of a comparison of steps: its metrics, step by step, and its resource usage."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.bench.watch import Usage

#: In the order of a step. The refit is not a phase: it is part of the time of kubealign's generate.
PHASES = ("generate", "score", "values", "logprobs", "train")


@dataclass
class Side:
    """Measurements of one side over all rounds, without warm-up steps."""

    name: str
    #: Lines of metrics, one per step: `time` (end, seconds since the epoch), `batch/tokens`, `seconds/PHASE`.
    steps: list[dict[str, Any]] = field(default_factory=list)
    #: Processor seconds per step, by group, one entry per round.
    cpu_seconds: list[dict[str, float]] = field(default_factory=list)
    #: Cores that the rest of the machine used meanwhile, one entry per round.
    others_cores: list[float] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    peak_bytes_of_all: int = 0

    def add(self, lines: Sequence[dict[str, Any]], usage: Usage, warmup: int) -> None:
        """Add one round. Raises RuntimeError if it has no step after the warm-up."""
        measured = list(lines[warmup:])
        if not measured:
            raise RuntimeError(f"{self.name} made {len(lines)} steps, {warmup} of them warm-up")
        end = measured[-1]["time"]
        begin = lines[warmup - 1]["time"] if warmup else measured[0]["time"] - measured[0]["seconds/step"]
        self.steps += measured
        self.cpu_seconds.append(
            {group: seconds / len(measured) for group, seconds in usage.cpu_seconds(begin, end).items()}
        )
        self.others_cores.append(usage.others_cores(begin, end))
        peaks, of_all = usage.peak_bytes(end)
        for group, size in peaks.items():
            self.peak_bytes[group] = max(self.peak_bytes.get(group, 0), size)
        self.peak_bytes_of_all = max(self.peak_bytes_of_all, of_all)

    def seconds(self, phase: str) -> float | None:
        """Return the median seconds of a phase; None if this side has no such phase."""
        values = [line[f"seconds/{phase}"] for line in self.steps if f"seconds/{phase}" in line]
        return _median(values) if values else None

    @property
    def step_seconds(self) -> float:
        return _median(line["seconds/step"] for line in self.steps)

    def rest(self) -> float:
        """Return the median seconds outside of all phases."""
        return _median(
            line["seconds/step"] - sum(line.get(f"seconds/{phase}", 0.0) for phase in PHASES)
            for line in self.steps
        )

    def tokens_per_second(self) -> float:
        """Return the tokens per second over all steps together, because their tokens differ."""
        tokens = sum(line["batch/tokens"] for line in self.steps)
        return float(tokens / sum(line["seconds/step"] for line in self.steps))

    def cpu_seconds_by_group(self) -> dict[str, float]:
        """Return the median over the rounds, for groups that used any."""
        groups = dict.fromkeys(group for entry in self.cpu_seconds for group in entry)
        return {
            group: median
            for group in groups
            if (median := statistics.median(entry.get(group, 0.0) for entry in self.cpu_seconds)) >= 0.005
        }

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the medians by phase."""
        phases = {phase: seconds for phase in PHASES if (seconds := self.seconds(phase)) is not None}
        phases |= {"rest": self.rest(), "step": self.step_seconds}
        if (refit := self.seconds("refit")) is not None:
            phases["of it refit"] = refit
        return asdict(self) | {
            "seconds": phases,
            "tokens_per_second": self.tokens_per_second(),
            "cpu_seconds_a_step": self.cpu_seconds_by_group(),
        }


def _median(numbers: Iterable[float]) -> float:
    return float(statistics.median(numbers))
