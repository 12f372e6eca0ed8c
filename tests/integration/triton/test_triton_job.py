"""PPO whose rollout worker generates behind a Triton server that is killed during the job."""

import os
import signal
from pathlib import Path

import pytest

from kubealign_services.generation.triton_engine.server_install import TritonInstallation
from kubealign_services.runtime.process.failures import PermanentFailure
from support.running import RunningJobs, alive, children, left_running
from support.tiny_jobs import FROM_CONFIG, online_job, write_jobs

try:
    TritonInstallation.find()
    ABSENT = ""
except PermanentFailure as failure:
    ABSENT = str(failure)

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]

STEPS = 8


def tritonserver(worker: int) -> int | None:
    for child in children(worker):
        if b"tritonserver" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]:
            return child
    return None


@pytest.mark.full
def test_killed_server_costs_only_a_retry(tmp_path: Path) -> None:
    """Check that every step is trained once, no role is restarted and no server process is left."""
    job = online_job(
        tmp_path,
        "behind-triton",
        {"ppo": {"promptsPerStep": 8, "samplesPerPrompt": 2, "minibatchSequences": 16}},
        maxSteps=STEPS,
        critic={"model": FROM_CONFIG},
        rollout={
            "engine": {"triton": {"maxSequences": 16, "startTimeoutSeconds": 300}},
            "sampling": {"maxTokens": 8},
        },
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("behind-triton", 2, timeout=300)
        worker = run.processes("behind-triton")["rollout-0"]
        server = tritonserver(worker["pid"])
        assert server is not None
        pids = [server, *children(server)]
        os.kill(server, signal.SIGKILL)
        assert run.end(timeout=300) == 0, run.output
        steps = [line["step"] for line in run.metrics("behind-triton") if "seconds/step" in line]
        assert steps == list(range(1, STEPS + 1))
        logs = (run.folder("behind-triton") / "logs" / "rollout-0.log").read_text()
        assert "Triton server is started again" in logs
        assert logs.count('"started"') == 1
        assert not alive(pids)
    assert not left_running(tmp_path)
