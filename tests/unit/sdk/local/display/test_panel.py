"""Panel of a run on a terminal."""

from io import StringIO

import pytest
from rich.console import Console

from kubealign.local.display.panel import render_panel
from kubealign.local.display.progress_snapshot import ProgressSnapshot
from kubealign.read_model import JobProgress, StepMetrics


@pytest.mark.parametrize(("max_steps", "text"), [(None, "step 3/?"), (90, "step 3/90")])
def test_the_total_is_shown_once_it_is_known(max_steps: int | None, text: str) -> None:
    snapshot = ProgressSnapshot("tuned", max_steps, 0.0, JobProgress(step=3))
    snapshot.recent_steps.append(StepMetrics("1-0", 3, 1, {"seconds/step": 2.0}))
    console = Console(width=120, file=StringIO())
    with console.capture() as capture:
        console.print(render_panel(snapshot, 10.0))
    panel = capture.get()
    assert f"{text} " in panel
    assert ("left" in panel) == (max_steps is not None)
    assert "None" not in panel
