"""A refit that exceeds its deadline costs an attempt of the driver, and not the job."""

import json
from pathlib import Path

import pytest

from kubealign_services.runtime.failpoints import FILE, Action, Failpoint
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

STEPS = 4
REFIT_SECONDS = 2
STOP_SECONDS = 6


@pytest.mark.parametrize(
    ("place", "process", "cause"),
    [
        (Failpoint.WEIGHTS_BEFORE_PUBLISH, "trainer-0", "the trainer had not published version 2 after 2 s"),
        (Failpoint.WEIGHTS_BEFORE_APPLY, "rollout-0", "First try: rollout-0: no answer within 2"),
    ],
)
def test_a_process_that_is_stopped_during_a_refit_costs_an_attempt(
    tmp_path: Path, place: Failpoint, process: str, cause: str
) -> None:
    grpo = {"promptsPerStep": 2, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0}}}
    job = online_job(tmp_path, "refit", {"grpo": grpo}, maxSteps=STEPS)
    job["spec"]["rollout"]["refit"] = {"timeoutSeconds": REFIT_SECONDS}
    folder = tmp_path / "runs" / "refit"
    folder.mkdir(parents=True)
    # The third publication, after that of the initial weights, is version 2.
    stop = {"name": place, "action": Action.STOP, "process": process, "hit": 3, "seconds": STOP_SECONDS}
    (folder / FILE).write_text(json.dumps([stop]))
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(120) == 0, run.output
        assert [line["step"] for line in run.history("refit")] == list(range(1, STEPS + 1))
    log = (folder / "logs" / "driver.log").read_text()
    assert cause in log
    assert "restarting from the last checkpoint" in log
