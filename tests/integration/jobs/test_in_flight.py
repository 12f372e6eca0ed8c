"""Asynchronous training through the real command: responses survive refits, and a worker is killed."""

from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs, write_prompts

pytestmark = pytest.mark.timeout(300)

STEPS, PROMPTS_PER_STEP = 14, 4
PROMPTS = STEPS * PROMPTS_PER_STEP


def job(folder: Path, in_flight: str, engine: dict[str, Any]) -> Path:
    """Return a job of exactly one epoch whose responses take longer than a step."""
    algorithm = {
        "grpo": {
            "promptsPerStep": PROMPTS_PER_STEP,
            "samplesPerPrompt": 4,
            "maxStaleness": 2,
            "kl": {"fixed": {"coefficient": 0.0}},
        }
    }
    document = online_job(
        folder,
        "flight",
        algorithm,
        maxSteps=STEPS,
        rollout={
            "engine": engine,
            "sampling": {"maxTokens": 56, "minTokens": 40},
            "refit": {"inFlight": in_flight},
        },
        lifecycle={"maxRestarts": 10},
    )
    document["spec"]["data"] = {"prompts": {"source": {"path": str(write_prompts(folder, PROMPTS))}}}
    return write_jobs(folder, document)


@pytest.mark.parametrize("in_flight", ["Interrupt", "Continue"])
def test_responses_live_through_refits_and_a_killed_worker_loses_nothing(
    tmp_path: Path, in_flight: str
) -> None:
    """Check that each prompt is trained on once, within the allowed staleness, and that none is discarded as
    stale."""
    file = job(tmp_path, in_flight, {"torch": {"maxSequences": 16}})
    with RunningJobs(file, tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("flight", 5)
        run.kill("flight", "rollout-0")
        assert run.end(240) == 0, run.output
        figures, history = run.steps("flight"), run.history("flight")
    assert [line["step"] for line in history] == list(range(1, STEPS + 1))
    trained = [prompt for line in history for prompt in line["prompts"]]
    assert sorted(trained) == sorted(f"0/{row}" for row in range(PROMPTS))
    assert {line["fence"] for line in history} == {1}, "the driver and the trainer went on"
    assert max(line["rollout/mixed_versions_share"] for line in figures.values()) > 0
    assert max(line["rollout/staleness_max"] for line in figures.values()) <= 2
    assert max(line["rollout/staleness_max"] for line in figures.values()) > 0
    assert all(line["rollout/groups_discarded"] == 0 for line in figures.values())
    gaps = [line["rollout/logprob_gap_max"] for line in figures.values() if "rollout/logprob_gap_max" in line]
    assert gaps and max(gaps) < 1e-3
    # Two batches beyond the current one are in flight until the job ends.
    ahead = [line["rollout/groups_in_flight"] + line["rollout/groups_waiting"] for line in figures.values()]
    assert set(ahead) == {2 * PROMPTS_PER_STEP}
    assert all({"seconds/wait_groups", "seconds/groups_waited"} <= line.keys() for line in figures.values())
