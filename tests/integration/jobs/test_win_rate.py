"""Win rate against the initial policy, and rewards by the policy's judgements, through the real command,
across a killed rollout worker, a killed driver and a stopped job.
"""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from threading import Thread
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_reward

pytestmark = pytest.mark.timeout(400)

STEPS = 4
SAMPLES = 2
PROMPTS = [f"{letter}h" for letter in "abcdefgh"]


def prefer(first: str, second: str) -> str:
    """Return the winner of two responses: that with more distinct letters."""
    difference = len(set(first)) - len(set(second))
    return "tie" if difference == 0 else "A" if difference > 0 else "B"


class Judge(BaseHTTPRequestHandler):
    """Answers the questions of the job's template."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first, second = body["messages"][0]["content"].split("|||")
        text = json.dumps({"explanation": "by its letters", "winner": prefer(first, second)})
        answer = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def judge_server() -> Iterator[str]:
    """Serve the judge on loopback. Yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join(30)


def write_job(folder: Path, url: str) -> Path:
    rows = folder / "held-out.jsonl"
    rows.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    judge = {
        "url": url,
        "model": "letters",
        "task": {"pairwise": {"baselineColumn": "initial"}},
        "template": "{first}|||{second}",
    }
    # The model has eight letters, and can write no score.
    own = {
        "name": "own",
        "policyJudge": {"task": {"pointwise": {}}, "template": "{response}h", "maxTokens": 4},
        "timeoutSeconds": 100,
        "onError": "Zero",
    }
    job = online_job(
        folder,
        "wins",
        {"rloo": {"promptsPerStep": 2, "samplesPerPrompt": SAMPLES}},
        maxSteps=STEPS,
        rewards=[write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.5)))), own],
        validation={
            "data": {"prompts": {"source": {"path": str(rows)}}},
            "atStart": False,
            "everySteps": 2,
            "sampling": {
                "samplesPerPrompt": 2,
                "confidence": 0.95,
                "initialPolicyColumn": "initial",
                "scores": [{"name": "win-rate", "judge": judge}],
            },
        },
        checkpoint={"everySteps": 1, "keepBest": {"metric": "val/win-rate"}},
    )
    return write_jobs(folder, job)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def share_won(response: str, baseline: str) -> float:
    """Return the share of the two orders that a response wins."""
    points = {"tie": 0.5, "A": 1.0, "B": 0.0}
    return (points[prefer(response, baseline)] + 1 - points[prefer(baseline, response)]) / 2


def test_later_weights_are_compared_with_one_set_of_responses_across_restarts(tmp_path: Path) -> None:
    with (
        judge_server() as url,
        RunningJobs(write_job(tmp_path, url), tmp_path / "runs", "--no-dashboard") as run,
    ):
        run.wait_for_step("wins", 1)
        path = run.folder("wins") / "validation" / "initial-policy.jsonl"
        before = path.read_bytes()
        run.kill("wins", "rollout-0")
        run.kill("wins", "driver")
        run.wait_for_step("wins", 2)
        run.send(signal.SIGINT)
        assert run.end(60) == 130, run.output[-4000:]
        run.start()
        assert run.end(200) == 0, run.output[-4000:]
        metrics, folder = run.metrics("wins"), run.folder("wins")
    steps = {line["step"]: line for line in metrics if "reward/own/mean" in line}
    assert sorted(steps) == list(range(1, STEPS + 1))
    for line in steps.values():
        assert (line["reward/own/errors"], line["reward/own/mean"]) == (2 * SAMPLES, 0)
        assert line["reward/mean"] == pytest.approx(line["reward/letters/mean"])
    assert path.read_bytes() == before
    initial = {line["row"]: line["response"] for line in read_lines(path)}
    assert sorted(initial) == list(range(len(PROMPTS)))
    measured = {line["step"]: line for line in metrics if "val/win-rate" in line}
    assert sorted(measured) == [2, STEPS]
    for step, line in measured.items():
        samples = read_lines(folder / "validation" / f"step-{step:06d}.jsonl")
        assert len(samples) == 2 * len(PROMPTS)
        for sample in samples:
            row = int(sample["group_id"].rpartition("/")[2])
            assert sample["columns"] == {"initial": initial[row]}
            assert sample["scores"]["win-rate"] == share_won(sample["response"], initial[row])
        rate = fmean(sample["scores"]["win-rate"] for sample in samples)
        assert line["val/win-rate"] == pytest.approx(rate)
        assert line["val/win-rate/ci_low"] <= rate <= line["val/win-rate/ci_high"]
