"""Reward functions that return no valid rewards."""

from pathlib import Path
from typing import Any

import pytest

from support.tiny_jobs import online_job, write_reward

pytestmark = pytest.mark.timeout(180)

RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


def job(folder: Path, body: str, **reward: Any) -> dict[str, Any]:
    source = f"import math, time\n\ndef reward(prompts, responses, **columns):\n    {body}\n"
    bad = online_job(folder, "bad", RLOO, rewards=[write_reward(folder, source, "score") | reward])
    # A permanent error is detected at the first reply, so a small budget suffices.
    bad["spec"]["lifecycle"] = {"maxFailedGroups": 2}
    return bad


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return [math.nan for _ in responses]", "returned nan for response 0; a reward is a finite number"),
        ("return [1.0] * (len(responses) + 1)", "rewards for"),
    ],
)
def test_invalid_return_values_are_reported(tmp_path: Path, failed, body: str, message: str) -> None:
    output = failed(job(tmp_path, body))
    assert f"driver: reward score: reward of {tmp_path / 'score.py'} returned" in output
    assert message in output


def test_hanging_function_times_out(tmp_path: Path, failed) -> None:
    output = failed(job(tmp_path, "time.sleep(1e6)", timeoutSeconds=1.5))
    assert f"reward of {tmp_path / 'score.py'} did not answer within 1.5 s (its timeoutSeconds)" in output


def test_function_that_raises_for_every_prompt(tmp_path: Path, failed) -> None:
    """Check that each prompt is retried and then replaced until the budget is spent, since the data may be
    the cause."""
    output = failed(job(tmp_path, "return [1 / 0 for _ in responses]"))
    assert (
        "3 prompts were given up after 3 tries each, more than lifecycle.maxFailedGroups (2) allows" in output
    )
    assert "ZeroDivisionError: division by zero" in output
    assert f"{tmp_path / 'score.py'}, line 4: return [1 / 0 for _ in responses]" in output


def test_a_file_that_cannot_be_imported(tmp_path: Path, failed) -> None:
    rewards = [write_reward(tmp_path, "import nothing_like_it\n", "score")]
    output = failed(online_job(tmp_path, "bad", RLOO, rewards=rewards))
    assert f"reward-score-0: reward score: reward of {tmp_path / 'score.py'} cannot be imported" in output
    assert "No module named 'nothing_like_it'" in output
