"""Tracker that writes TensorBoard event files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kubealign_services.telemetry.trackers.completions import TABLE, to_markdown
from kubealign_services.telemetry.trackers.contract import RunOutcome, TrackedJob

_FLUSH_SECONDS = 10
#: Metric that only trained steps have, not validations.
_TRAINED_STEP_METRIC = "seconds/step"


class TensorBoardWriter:
    """Writes an event file for each driver run.

    When steps are repeated, TensorBoard purges them from the earlier files.
    """

    def __init__(self, job: TrackedJob, folder: Path) -> None:
        self._job = job
        self._folder = folder
        self._fence = 0
        self._writer: Any = None

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None or fence > self._fence:
            # The step of a validation is not repeated.
            self._open_writer(fence, step if _TRAINED_STEP_METRIC in metrics else step + 1)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._writer is None:
            # Responses of a validation before the first step.
            self._open_writer(int(rows[0]["fence"]), step + 1)
        self._writer.add_text(f"{TABLE}/{rows[0]['purpose']}", to_markdown(rows), step)

    def close(self, outcome: RunOutcome) -> None:
        if self._writer is not None:
            self._writer.close()

    def _open_writer(self, fence: int, first_step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        self._fence = fence
        self._writer = SummaryWriter(str(self._folder), purge_step=first_step, flush_secs=_FLUSH_SECONDS)
        text = yaml.safe_dump(dict(self._job.spec), sort_keys=False, allow_unicode=True)
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self._writer.add_text("spec", indented, first_step)
