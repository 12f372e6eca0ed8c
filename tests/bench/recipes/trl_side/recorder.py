"""Records the steps of a transformers trainer, and measures held-out rows between them. Imports nothing of
kubealign.
"""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

#: Steps between two measurements of held-out rows.
EVERY_STEPS = 4


class StepRecorder(TrainerCallback):
    """Writes the metrics of each step. The seconds of a step contain no measurement of held-out rows.

    Args:
        measure: Returns metrics of held-out rows.
        names: Name in the trainer's log -> name of the metric.
        starts_with_step: A step begins when the trainer says so; False: when the previous one ends, for a
            trainer that generates before it says so.
    """

    def __init__(
        self,
        measure: Callable[[], Mapping[str, float]],
        names: Mapping[str, str],
        steps: int,
        out: Path,
        *,
        starts_with_step: bool = True,
    ) -> None:
        self._measure, self._names, self._steps, self._out = measure, names, steps, out
        self._starts_with_step = starts_with_step
        self._began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._write(0, self._measure())
        self._began = time.perf_counter()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._starts_with_step:
            self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self._began
        step = state.global_step
        held_out = self._measure() if step % EVERY_STEPS == 0 or step == self._steps else {}
        self._write(step, {"seconds/step": seconds, **held_out})
        self._began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        values = {name: logs[own] for own, name in self._names.items() if own in (logs or {})}
        if values:
            self._write(state.global_step, values)

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
