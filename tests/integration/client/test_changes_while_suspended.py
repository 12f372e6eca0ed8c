"""A job that is changed while it is suspended: the processes of the resumed job use the new values."""

from pathlib import Path

import pytest

from kubealign import AlignmentClient
from kubealign.replay.record import FOLDER, list_recorded_steps
from kubealign_services.checkpoints.store import CheckpointReader
from support.tiny_jobs import sft_job

STEPS, CADENCE = 100, 30


@pytest.mark.timeout(200)
def test_a_resumed_driver_uses_the_new_cadence_of_checkpoints(
    client: AlignmentClient, tmp_path: Path
) -> None:
    checkpoint = {"everySteps": 1000, "keep": 1}
    job = client.submit(sft_job(tmp_path, "cadence", maxSteps=STEPS, checkpoint=checkpoint))
    job.wait(120, until="Running")
    for changed in client.changes("cadence"):
        if changed.step >= 2:
            break
    job.suspend()
    job.wait(60, until="Suspended")
    stopped_at = job.step
    run = tmp_path / "runs" / "cadence"
    assert _steps(run) == [stopped_at]
    client.patch(
        "cadence", {"spec": {"checkpoint": {"everySteps": CADENCE, "keep": 50, "recordBatches": True}}}
    )
    job.resume()
    job.wait(120)
    new = [step for step in range(CADENCE, STEPS, CADENCE) if step > stopped_at]
    assert _steps(run) == [stopped_at, *new, STEPS] and new
    recorded = list_recorded_steps(run / FOLDER)
    assert recorded == list(range(stopped_at + 1, STEPS + 1))


def _steps(run: Path) -> list[int]:
    """Return the steps of the checkpoints, each of which is verified."""
    checkpoints = CheckpointReader(run)
    steps = [step for step in range(1, STEPS + 1) if checkpoints.at_step(step) is not None]
    assert len(steps) == len(checkpoints.paths())
    return steps
