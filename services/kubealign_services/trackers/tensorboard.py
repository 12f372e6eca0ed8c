"""Figures as TensorBoard's event files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kubealign_services.trackers.contract import Ending, TrackedJob

_FLUSH_SECONDS = 10
#: Only a step that was trained has it.
_TRAINED = "seconds/step"


class TensorBoardTracker:
    """A file of events for each driver. Where steps are done again, TensorBoard is told to forget what
    earlier files hold of them."""

    def __init__(self, job: TrackedJob, folder: Path) -> None:
        self._job = job
        self._folder = folder
        self._fence = 0
        self._writer: Any = None

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None or fence > self._fence:
            # A validation belongs to a step that is not done again.
            self._begin(fence, step if _TRAINED in metrics else step + 1)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, ending: Ending) -> None:
        if self._writer is not None:
            self._writer.close()

    def _begin(self, fence: int, first_step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        if self._writer is not None:
            self._writer.close()
        self._fence = fence
        self._writer = SummaryWriter(str(self._folder), purge_step=first_step, flush_secs=_FLUSH_SECONDS)
        text = yaml.safe_dump(dict(self._job.spec), sort_keys=False, allow_unicode=True)
        indented = "".join(f"    {line}\n" for line in text.splitlines())
        self._writer.add_text("spec", indented, first_step)
