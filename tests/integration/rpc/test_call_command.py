"""`kubealign call` on real processes: each service that serves direct calls."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from kubealign.cli.main import app
from kubealign_services.batch.codec import decode_columns
from support.running import RunningJobs
from support.tiny_jobs import (
    FROM_CONFIG,
    PACED_LETTER_A,
    online_job,
    set_pace,
    sft_job,
    write_jobs,
    write_reward,
)

pytestmark = pytest.mark.timeout(180)
CANDIDATES = 3
ENDLESS = 100_000


class CalledJob:
    """A job that runs until the end of the tests, and the command on its processes."""

    def __init__(self, running: RunningJobs, name: str) -> None:
        self.name = name
        self.running = running

    def invoke(self, process: str, *arguments: str, stdin: str | None = None) -> Result:
        command = ["call", self.name, process, *arguments, "--runs-dir", str(self.running.runs)]
        return CliRunner().invoke(app, command, input=stdin)

    def call(self, process: str, method: str, request: Any = None) -> Any:
        """Return the reply of a unary method; the request is sent by stdin."""
        done = self.invoke(process, method, "--request-file", "-", stdin=json.dumps(request or {}))
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def generate(self, **item: Any) -> list[dict[str, Any]]:
        # Not the worker's own weights: it has none during a refit.
        fence = self.call("driver", "Driver.Progress")["fence"]
        columns = base64.b64encode(json.dumps({"prompt": "ab", "columns": {}}).encode()).decode()
        item |= {"fence": fence, "group_id": "by-hand", "prompt_tokens": [3, 4], "columns": columns}
        done = self.invoke("rollout-0", "Generate", "--request", json.dumps({"item": item}))
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]


def _running(folder: Path, job: dict[str, Any]) -> RunningJobs:
    return RunningJobs(write_jobs(folder, job), folder / "runs", "--no-dashboard")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CalledJob, CalledJob]]:
    """Start a job with a reward, a reference and a rollout worker, and a distillation with a teacher."""
    folder = tmp_path_factory.mktemp("called")
    (folder / "online").mkdir(), (folder / "taught").mkdir()
    reward = write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.2))))
    algorithm = {"grpo": {"promptsPerStep": 2, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0.01}}}}
    online = online_job(
        folder / "online",
        "tiny",
        algorithm,
        maxSteps=ENDLESS,
        rewards=[reward],
        trainer={"optimizer": {"adamW": {"learningRate": 1e-12}}},
    )
    taught = sft_job(
        folder / "taught",
        "taught",
        maxSteps=ENDLESS,
        algorithm={"distillation": {"rowsPerStep": 2, "candidates": CANDIDATES}},
        teacher={"model": FROM_CONFIG},
    )
    with (
        _running(folder / "online", online) as first,
        _running(folder / "taught", taught) as second,
    ):
        first.wait_for_step("tiny", 1)
        second.wait_for_step("taught", 1)
        yield CalledJob(first, "tiny"), CalledJob(second, "taught")


@pytest.fixture
def tiny(jobs: tuple[CalledJob, CalledJob]) -> CalledJob:
    return jobs[0]


def columns(document: dict[str, Any]) -> dict[str, torch.Tensor]:
    return decode_columns(base64.b64decode(document["columns"]), document["digest"])


def sampled(tiny: CalledJob) -> list[dict[str, Any]]:
    sampling = {"max_tokens": 4, "temperature": 1.0, "top_p": 1.0}
    return tiny.generate(samples=2, seeds=[1, 2], sampling=sampling)


def test_list_describes_the_methods_of_a_process(tiny: CalledJob) -> None:
    done = tiny.invoke("rollout-0", "--list")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "RolloutService.Generate returns a stream of Rollout (callers: driver)" in lines
    assert "    prompt_tokens: list of uint32" in lines
    assert "RolloutService.Status returns RolloutStatus (callers: driver)" in lines
    assert [line for line in lines if not line.startswith((" ", "RolloutService."))] == []


def test_driver_reports_its_progress_to_the_role_runner(tiny: CalledJob) -> None:
    progress = tiny.call("driver", "Driver.Progress")
    assert progress["max_steps"] == str(ENDLESS) and int(progress["fence"]) >= 1
    assert 1 <= int(progress["step"]) < ENDLESS


def test_rollout_worker_reports_its_status(tiny: CalledJob) -> None:
    status = tiny.call("rollout", "Status")
    assert status["worker"] == "rollout-0" and status["quarantined"] is False
    assert int(status["weights"]["version"]) >= 0 and int(status["generated_tokens"]) > 0


def test_generate_streams_the_samples_of_a_work_item(tiny: CalledJob) -> None:
    rollouts = sampled(tiny)
    assert sorted(rollout["sample"] for rollout in rollouts) == [0, 1]
    for rollout in rollouts:
        assert rollout["worker"] == "rollout-0" and rollout["group_id"] == "by-hand"
        sequence = columns(rollout["sequence"])
        assert sequence["tokens"][:2].tolist() == [3, 4] and 3 <= len(sequence["tokens"]) <= 6


def test_reward_scores_generated_samples(tiny: CalledJob) -> None:
    rollouts = sampled(tiny)
    scores = tiny.call("reward-letters", "Reward.Score", {"rollouts": rollouts})["scores"]
    expected = [r["response"].count("a") / max(1, len(r["response"])) for r in rollouts]
    assert [score["reward"] for score in scores] == expected
    assert [score["digest"] for score in scores] == [r["sequence"]["digest"] for r in rollouts]
    assert {(score["source"], score["worker"], score["error"]) for score in scores} == {
        ("letters", "reward-letters-0", "")
    }


def test_reference_returns_log_probabilities_of_tokens(tiny: CalledJob) -> None:
    (sequence, _) = (rollout["sequence"] for rollout in sampled(tiny))
    reply = columns(tiny.call("reference", "Logprobs", {"batch": sequence}))["token.logprobs"]
    sampled_by_the_engine = columns(sequence)["token.engine_logprobs"]
    assert reply.shape == sampled_by_the_engine.shape
    # The policy's learning rate is too low to change its weights, which are the reference's.
    torch.testing.assert_close(reply[2:], sampled_by_the_engine[2:], atol=1e-4, rtol=1e-4)
    assert (reply[2:] < 0).all()


def test_teacher_returns_its_most_probable_tokens(jobs: tuple[CalledJob, CalledJob]) -> None:
    tiny, taught = jobs
    (sequence, _) = (rollout["sequence"] for rollout in sampled(tiny))
    reply = columns(taught.call("teacher", "Candidates", {"batch": sequence}))
    logprobs = reply["token.candidate_logprobs"]
    assert reply["token.candidates"].shape == logprobs.shape
    assert logprobs.shape[1] == CANDIDATES and len(logprobs) <= len(columns(sequence)["tokens"])
    assert (logprobs.diff(dim=1) <= 0).all() and (logprobs <= 0).all()


def test_errors_are_those_of_the_server(tiny: CalledJob) -> None:
    (sequence, _) = (rollout["sequence"] for rollout in sampled(tiny))
    done = tiny.invoke(
        "reference", "Logprobs", "--request", json.dumps({"batch": sequence | {"digest": "0"}})
    )
    assert done.exit_code == 1 and "reference-0 Reference.Logprobs: the columns have digest" in done.stderr
    done = tiny.invoke("rollout", "Generate", "--request", '{"item": {"fence": 0}}')
    assert done.exit_code == 1 and "Generate: fence 0 has been replaced by" in done.stderr
    late = {"item": {"fence": 1, "min_version": 10 * ENDLESS}}
    done = tiny.invoke("rollout", "Generate", "--request", json.dumps(late), "--timeout", "0.5")
    assert done.exit_code == 1 and "rollout-0" in done.stderr and done.stdout == ""


def test_process_or_method_that_does_not_exist(tiny: CalledJob) -> None:
    done = tiny.invoke("teacher", "Candidates")
    assert (done.exit_code, done.stderr) == (
        1,
        "default/tiny has no process teacher: there are prepare, trainer-0, reference-0, reward-letters-0, "
        "rollout-0, driver\n",
    )
    done = tiny.invoke("prepare", "Progress")
    assert done.exit_code == 1 and "prepare of default/tiny cannot be called, it is Finished" in done.stderr
    done = tiny.invoke("reward", "Score2")
    assert (done.exit_code, done.stderr) == (
        1,
        "reward-letters-0 has no method Score2: there are Reward.Score\n",
    )
    done = tiny.invoke("reward", "Score", "--request", '{"rollouts": [{"sequenc": {}}]}')
    assert done.exit_code == 2
    assert done.stderr.startswith("Reward.Score has no field rollouts.sequenc: Rollout has fence, group_id,")
