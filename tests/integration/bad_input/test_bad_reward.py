"""Reward functions that do not give rewards."""

from pathlib import Path
from typing import Any

import pytest

from support.tiny_jobs import online_job, write_reward

pytestmark = pytest.mark.timeout(180)

RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}}


def job(folder: Path, body: str, **reward: Any) -> dict[str, Any]:
    source = f"import math, time\n\ndef reward(prompts, responses, **columns):\n    {body}\n"
    bad = online_job(folder, "bad", RLOO, rewards=[write_reward(folder, source, "score") | reward])
    # What cannot be mended is found at the first answer, so one is enough.
    bad["spec"]["lifecycle"] = {"maxFailedGroups": 2}
    return bad


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [math.nan for _ in responses]", "returned nan for response 0; a reward is a finite number"),
        ("return [1.0] * (len(responses) + 1)", "rewards for"),
    ],
)
def test_something_else_than_a_number_a_response(tmp_path: Path, failed, body: str, said: str) -> None:
    output = failed(job(tmp_path, body))
    assert f"driver: reward score: reward of {tmp_path / 'score.py'} returned" in output
    assert said in output


def test_one_that_hangs(tmp_path: Path, failed) -> None:
    output = failed(job(tmp_path, "time.sleep(1e6)", timeoutSeconds=1.5))
    assert f"reward of {tmp_path / 'score.py'} did not answer within 1.5 s (its timeoutSeconds)" in output


def test_one_that_raises_for_every_prompt(tmp_path: Path, failed) -> None:
    """The data may be the cause, so each prompt is tried again, and replaced, until the budget is spent."""
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
